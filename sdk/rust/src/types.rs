//! What every kind of plugin speaks of: messages, tasks, metrics.

pub use crate::bindings::types::{Failure, Field, Message, Metric, Role, Task, ToolCall};

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// A message of a tool.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new(Role::Tool, content)
    }
}

impl Task {
    /// The dataset column called `name`: the text of a string column, the JSON text of any other.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.value.as_str())
    }
}

impl Metric {
    /// `value` must be finite.
    pub fn new(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value }
    }
}

/// A failure that is not the model's doing: the rollout is dropped and counted.
impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self { message: message.into() }
    }
}
