//! Between the host's types and the contract's.

use molt_core::chat::{Message, Role, Task};

use crate::bindings::types as wit;
use crate::error::Cause;
use crate::quote;

/// Metrics that one call may return.
const METRICS: usize = 64;

/// Messages that one call may return.
const MESSAGES: usize = 1000;

/// Characters of a metric's name at most.
const METRIC_NAME: usize = 100;

/// Begins the names under which the host keeps what each reward gave.
const HOST_METRICS: &str = "reward/";

/// Bits of a task's seed: as many as a number in JavaScript holds, so that every language sees the same seed.
const SEED_BITS: u32 = 53;

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
        seed: seed & ((1 << SEED_BITS) - 1),
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

/// What an environment says: no more messages than any conversation has.
pub(crate) fn said(messages: Vec<wit::Message>) -> Result<Vec<Message>, Cause> {
    if messages.len() > MESSAGES {
        return Err(Cause::BadReturn(format!(
            "{} messages, and at most {MESSAGES} are taken",
            messages.len()
        )));
    }
    Ok(from_messages(messages))
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

/// The metrics by name: few, with short names on one line, since each becomes a column of the run's metrics.
pub(crate) fn from_metrics(metrics: Vec<wit::Metric>) -> Result<Vec<(String, f64)>, Cause> {
    if metrics.len() > METRICS {
        return Err(Cause::BadReturn(format!("{} metrics, and at most {METRICS} are taken", metrics.len())));
    }
    metrics
        .into_iter()
        .map(|metric| {
            let quoted = || format!("metric {:?}", quote::beginning(&metric.name));
            if metric.name.chars().nth(METRIC_NAME).is_some() {
                let what = format!("the name of {} has more than {METRIC_NAME} characters", quoted());
                return Err(Cause::BadReturn(what));
            }
            if quote::beginning(&metric.name) != metric.name {
                let what =
                    "has a control character, a mark that reorders text, or white space that does not show";
                return Err(Cause::BadReturn(format!("the name of {} {what}", quoted())));
            }
            if metric.name.starts_with(HOST_METRICS) {
                let what = format!("{} is named like the host's own, {HOST_METRICS}NAME", quoted());
                return Err(Cause::BadReturn(what));
            }
            let value = finite(metric.value, quoted)?;
            Ok((metric.name, value))
        })
        .collect()
}

/// `value`, unless it is infinite or not a number.
pub(crate) fn finite(value: f64, what: impl FnOnce() -> String) -> Result<f64, Cause> {
    if value.is_finite() { Ok(value) } else { Err(Cause::NotFinite(format!("{} is {value}", what()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<Vec<(String, f64)>, Cause> {
        from_metrics(vec![wit::Metric { name: name.into(), value: 2.0 }])
    }

    #[test]
    fn a_metric_is_named_as_it_is_read() {
        for name in ["steps", "judge grade", "größe/最大", "rewards/own", "my reward/x"] {
            assert_eq!(named(name), Ok(vec![(name.to_owned(), 2.0)]));
        }
        for name in ["a\nb", "a\u{202e}b", "\u{200f}a", "a\u{2066}", "a  b", " a", "a\u{1b}[31m"] {
            let refused = named(name);
            assert!(
                matches!(&refused, Err(Cause::BadReturn(what)) if what.contains("does not show")),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_metric_is_not_named_like_the_hosts() {
        for name in ["reward/math", "reward/"] {
            let refused = named(name);
            assert!(
                matches!(&refused, Err(Cause::BadReturn(what)) if what.contains("reward/NAME")),
                "{refused:?}"
            );
        }
    }
}
