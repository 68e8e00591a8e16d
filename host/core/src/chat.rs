//! Messages, and the dataset row that a rollout starts from.

use serde::{Deserialize, Serialize};

/// Who said a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// One chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// One row of a prompt dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The row's `id` column, or its line number.
    pub id: String,
    /// The prompt.
    pub messages: Vec<Message>,
    /// The expected answer, if the row has one.
    pub label: Option<String>,
    /// The other columns in order: the text of a string column, the JSON text of any other.
    pub fields: Vec<(String, String)>,
}
