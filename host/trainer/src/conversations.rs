//! Conversations to learn from: one JSON object per line.

use crate::error::TrainError;
use molt_core::chat::{Message, Role};
use molt_core::ids::Token;
use molt_core::seed::{Purpose, derive, permutation};
use molt_core::settings::SftData;
use molt_model::Chat;
use molt_rollout::jsonl::{Rows, read};
use molt_rollout::prompts;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A conversation as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub tokens: Vec<Token>,
    /// Positions of the assistant's tokens, which are learnt.
    pub targets: Vec<usize>,
}

/// A file to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub rows: Vec<Conversation>,
    /// Malformed rows that were left out.
    pub skipped: usize,
    /// How often a row comes in a pass.
    pub weight: f64,
}

/// Reads every file of `data.conversations`.
///
/// # Errors
/// As [`read_file`].
pub fn load(data: &SftData, chat: &Chat, max_context: usize) -> Result<Vec<Source>, TrainError> {
    let weights = data.weight.iter().copied().chain(std::iter::repeat(1.0));
    let source = |(path, weight): (&PathBuf, f64)| {
        let Rows { rows, skipped } = read_file(path, data, chat, max_context)?;
        Ok(Source { rows, skipped, weight })
    };
    data.conversations.iter().zip(weights).map(source).collect()
}

/// Reads and renders every row of a file as `data` says. A row longer than `max_context` tokens is malformed: it is
/// never cut.
///
/// # Errors
/// If the file cannot be read, has no usable row, or has a malformed one and those are refused.
pub fn read_file(
    path: &Path,
    data: &SftData,
    chat: &Chat,
    max_context: usize,
) -> Result<Rows<Conversation>, TrainError> {
    let parse = |_, row: Map<String, Value>| conversation(&row, data, chat, max_context);
    Ok(read(path, data.on_bad_row, parse)?)
}

/// The conversations of one pass, `(source, row)`, in a random order. The same number in every pass.
pub(crate) fn pass(sources: &[Source], seed: u64, pass: u64) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        let rows = source.rows.len();
        for _ in 0..source.weight.floor() as u64 {
            all.extend((0..rows).map(|row| (file, row)));
        }
        let more = (source.weight.fract() * rows as f64).round() as usize;
        let part = permutation(derive(seed, Purpose::Part { pass, file: file as u64 }), rows);
        all.extend(part.into_iter().take(more).map(|row| (file, row)));
    }
    let order = permutation(derive(seed, Purpose::Shuffle { pass }), all.len());
    order.into_iter().map(|at| all[at]).collect()
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

    fn source(rows: usize, weight: f64) -> Source {
        let row = |n: usize| Conversation { tokens: vec![n as u32, 0], targets: vec![1] };
        Source { rows: (0..rows).map(row).collect(), skipped: 0, weight }
    }

    #[test]
    fn a_weight_is_how_often_a_row_comes() {
        let sources = [source(10, 1.0), source(8, 2.25), source(20, 0.15)];
        let mut drawn = vec![0; 20];
        for number in 0..400 {
            let all = pass(&sources, 7, number);
            assert_eq!(all.len(), 10 + 18 + 3);
            let times = |file, row| all.iter().filter(|one| **one == (file, row)).count();
            assert!((0..10).all(|row| times(0, row) == 1));
            let second: Vec<usize> = (0..8).map(|row| times(1, row)).collect();
            assert!(second.iter().all(|times| [2, 3].contains(times)) && second.iter().sum::<usize>() == 18);
            (0..20).for_each(|row| drawn[row] += times(2, row));
            assert_eq!(all, pass(&sources, 7, number));
            assert_ne!(all, pass(&sources, 7, number + 1));
        }
        // 400 passes of 3 rows of 20: each row 60 times, with a standard deviation of about 7.
        assert!(drawn.iter().all(|times| (32..=88).contains(times)), "{drawn:?}");
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
