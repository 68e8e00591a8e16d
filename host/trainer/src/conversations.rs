//! Conversations to learn from: one JSON object per line.

use crate::error::TrainError;
use molt_core::chat::{Message, Role};
use molt_core::ids::Token;
use molt_core::settings::SftData;
use molt_model::Chat;
use molt_rollout::jsonl::{Rows, read};
use molt_rollout::prompts;
use serde_json::{Map, Value};

/// A conversation as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub tokens: Vec<Token>,
    /// Positions of the assistant's tokens, which are learnt.
    pub targets: Vec<usize>,
}

/// Reads and renders every row of `data.conversations`. A row longer than `max_context` tokens is malformed: it
/// is never cut.
///
/// # Errors
/// If the file cannot be read, has no usable row, or has a malformed one and those are refused.
pub fn load(data: &SftData, chat: &Chat, max_context: usize) -> Result<Rows<Conversation>, TrainError> {
    let parse = |_, row: Map<String, Value>| conversation(&row, data, chat, max_context);
    Ok(read(&data.conversations, data.on_bad_row, parse)?)
}

fn conversation(
    row: &Map<String, Value>,
    data: &SftData,
    chat: &Chat,
    max_context: usize,
) -> Result<Conversation, String> {
    let (tokens, learnt) = chat.supervised(&messages(row, data)?).map_err(|error| error.to_string())?;
    if tokens.len() > max_context {
        return Err(format!("{} tokens do not fit a context of {max_context}", tokens.len()));
    }
    let targets: Vec<usize> = (1..tokens.len()).filter(|&position| learnt[position]).collect();
    if targets.is_empty() {
        return Err("the assistant says nothing that could be learnt".to_owned());
    }
    Ok(Conversation { tokens, targets })
}

fn messages(row: &Map<String, Value>, data: &SftData) -> Result<Vec<Message>, String> {
    let SftData { prompt_key, reply_key, .. } = data;
    let mut messages = match row.get(prompt_key) {
        None => return Err(format!("there is no column {prompt_key}, which should hold the conversation")),
        Some(value) => {
            prompts::messages(value.clone()).map_err(|what| format!("column {prompt_key}: {what}"))?
        }
    };
    if messages.last().is_none_or(|last| last.role != Role::Assistant) {
        let reply = row.get(reply_key).ok_or_else(|| {
            format!("the conversation does not end with the assistant, and there is no column {reply_key}")
        })?;
        let reply = prompts::scalar(reply.clone()).map_err(|what| format!("column {reply_key}: {what}"))?;
        messages.push(Message::new(Role::Assistant, reply));
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Vec<Message>, String> {
        messages(&serde_json::from_str(line).expect("an object"), &SftData::default())
    }

    #[test]
    fn the_shapes_of_a_row() {
        let want = [Message::new(Role::User, "2+3?"), Message::new(Role::Assistant, "5")];
        for line in [
            r#"{"prompt": "2+3?", "answer": "5"}"#,
            r#"{"prompt": "2+3?", "answer": 5}"#,
            r#"{"prompt": [{"role": "user", "content": "2+3?"}], "answer": "5", "other": 1}"#,
            r#"{"prompt": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}"#,
        ] {
            assert_eq!(parse(line).as_deref(), Ok(&want[..]), "{line}");
        }
    }

    #[test]
    fn a_bad_row_says_what_is_wrong() {
        for (line, want) in [
            (r#"{"question": "2+3?"}"#, "no column prompt"),
            (r#"{"prompt": 5}"#, "a string or a list of messages"),
            (r#"{"prompt": "2+3?"}"#, "no column answer"),
            (r#"{"prompt": "2+3?", "answer": [5]}"#, "column answer: expected a string"),
            (r#"{"prompt": [{"role": "robot", "content": "x"}]}"#, "message 1"),
            (r#"{"prompt": []}"#, "the list of messages is empty"),
        ] {
            let error = parse(line).expect_err("a bad row");
            assert!(error.contains(want), "{error}");
        }
    }
}
