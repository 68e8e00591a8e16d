//! Between the host's types and the contract's.

use molt_core::chat::{Message, Role, Task};

use crate::bindings::types as wit;
use crate::error::Cause;
use crate::quote;

pub(crate) fn task(task: &Task, seed: u64) -> wit::Task {
    wit::Task {
        id: task.id.clone(),
        messages: messages(&task.messages),
        label: task.label.clone(),
        fields: task
            .fields
            .iter()
            .map(|(name, value)| wit::Field { name: name.clone(), value: value.clone() })
            .collect(),
        seed,
    }
}

pub(crate) fn messages(messages: &[Message]) -> Vec<wit::Message> {
    messages
        .iter()
        .map(|message| wit::Message {
            role: match message.role {
                Role::System => wit::Role::System,
                Role::User => wit::Role::User,
                Role::Assistant => wit::Role::Assistant,
                Role::Tool => wit::Role::Tool,
            },
            content: message.content.clone(),
        })
        .collect()
}

pub(crate) fn from_messages(messages: Vec<wit::Message>) -> Vec<Message> {
    let role = |role| match role {
        wit::Role::System => Role::System,
        wit::Role::User => Role::User,
        wit::Role::Assistant => Role::Assistant,
        wit::Role::Tool => Role::Tool,
    };
    messages.into_iter().map(|message| Message::new(role(message.role), message.content)).collect()
}

pub(crate) fn from_metrics(metrics: Vec<wit::Metric>) -> Result<Vec<(String, f64)>, Cause> {
    metrics
        .into_iter()
        .map(|metric| {
            let value = finite(metric.value, || format!("metric {:?}", quote::beginning(&metric.name)))?;
            Ok((metric.name, value))
        })
        .collect()
}

/// `value`, unless it is infinite or not a number.
pub(crate) fn finite(value: f64, what: impl FnOnce() -> String) -> Result<f64, Cause> {
    if value.is_finite() { Ok(value) } else { Err(Cause::NotFinite(format!("{} is {value}", what()))) }
}
