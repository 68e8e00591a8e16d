//! The prompts that a run starts from.

use crate::jsonl::{self, DataError, kind};
use molt_core::chat::{Message, Role, Task};
use molt_core::seed::{Purpose, derive, permutation};
use molt_core::settings::{BadRow, Parameters};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// The column that names a row.
const ID_KEY: &str = "id";

/// Integers beyond this are not kept exactly by a JSON number (2^53).
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A prompt dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompts {
    /// In the order of the file. At least one when loaded.
    pub rows: Vec<Task>,
    /// Malformed rows that were left out.
    pub skipped: usize,
}

/// Where a row comes from, as its column `key` says. None without such a column.
pub fn source<'a>(task: &'a Task, key: &str) -> Option<&'a str> {
    task.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

impl Prompts {
    /// The different sources of the rows.
    pub fn sources(&self, key: &str) -> BTreeSet<&str> {
        self.rows.iter().filter_map(|task| source(task, key)).collect()
    }

    /// Loads a file with one JSON object per line. The column `prompt_key` is a string (one user message) or
    /// a list of messages; `label_key` is a string, number or boolean, null or missing; a column `id` names
    /// the row, or else its line number does; the other columns become fields. A row without one of `columns` has that one.
    ///
    /// # Errors
    /// If the file cannot be read, has no usable row, or has a malformed one and `on_bad_row` is to refuse.
    pub fn load(
        path: &Path,
        prompt_key: &str,
        label_key: &str,
        on_bad_row: BadRow,
        columns: &Parameters,
    ) -> Result<Prompts, DataError> {
        let parsed = jsonl::read(path, on_bad_row, |line, mut row| {
            for (name, value) in columns {
                row.entry(name.as_str()).or_insert_with(|| value.text().into());
            }
            task(line, row, prompt_key, label_key)
        })?;
        Ok(Prompts { rows: parsed.rows, skipped: parsed.skipped })
    }

    /// The row indices in the order of one pass: the file's, or one shuffled by the run's seed and the pass.
    pub fn order(&self, seed: u64, pass: u64, shuffle: bool) -> Vec<usize> {
        if shuffle {
            permutation(derive(seed, Purpose::Shuffle { pass }), self.rows.len())
        } else {
            (0..self.rows.len()).collect()
        }
    }
}

fn task(line: usize, mut row: Map<String, Value>, prompt_key: &str, label_key: &str) -> Result<Task, String> {
    let messages = match row.shift_remove(prompt_key) {
        None => return Err(format!("there is no column {prompt_key}, which should hold the prompt")),
        Some(value) => messages(value).map_err(|what| format!("column {prompt_key}: {what}"))?,
    };
    let label = match row.shift_remove(label_key) {
        None | Some(Value::Null) => None,
        Some(value) => Some(scalar(value).map_err(|what| format!("column {label_key}: {what}"))?),
    };
    let id = match row.shift_remove(ID_KEY) {
        None | Some(Value::Null) => line.to_string(),
        Some(value) => scalar(value).map_err(|what| format!("column {ID_KEY}: {what}"))?,
    };
    let fields = row.into_iter().map(|(name, value)| match value {
        Value::String(text) => (name, text),
        other => (name, other.to_string()),
    });
    Ok(Task { id, messages, label, fields: fields.collect() })
}

/// The messages of a prompt column, one at least: a string is one message of the user.
///
/// # Errors
/// What is wrong with the column.
pub fn messages(value: Value) -> Result<Vec<Message>, String> {
    match value {
        Value::String(text) if text.trim().is_empty() => Err("the prompt is empty".into()),
        Value::String(text) => Ok(vec![Message::new(Role::User, text)]),
        Value::Array(items) if items.is_empty() => Err("the list of messages is empty".into()),
        Value::Array(items) => {
            let number = |(index, item)| {
                serde_json::from_value(item).map_err(|e| format!("message {}: {e}", index + 1))
            };
            items.into_iter().enumerate().map(number).collect()
        }
        other => Err(format!("expected a string or a list of messages, found {}", kind(&other))),
    }
}

/// The text of a string, number or boolean.
///
/// # Errors
/// What is wrong with the column.
pub fn scalar(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.abs() >= EXACT => {
                Err("a number this large is not kept exactly; write it as a string".into())
            }
            _ => Ok(number.to_string()),
        },
        other => Err(format!("expected a string, a number or a boolean, found {}", kind(&other))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed set-up should stop the test where it is

    use super::*;
    use molt_core::settings::ParameterValue;

    fn load(text: &[u8], on_bad_row: BadRow) -> Result<Prompts, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        Prompts::load(&path, "prompt", "answer", on_bad_row, &Parameters::new())
    }

    #[test]
    fn a_row_without_a_column_has_that_of_the_settings() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(
            &path,
            r#"{"prompt": "a", "math": "exact"}
{"prompt": "b", "answer": "7"}"#,
        )
        .unwrap();
        let word = |word: &str| ParameterValue::Word(word.into());
        let columns = [("math", word("boxed")), ("answer", ParameterValue::Number(4.0))];
        let columns: Parameters = columns.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let rows = Prompts::load(&path, "prompt", "answer", BadRow::Refuse, &columns).unwrap().rows;
        let seen = |task: &Task| (task.label.clone().unwrap(), source(task, "math").unwrap().to_owned());
        assert_eq!(seen(&rows[0]), ("4".into(), "exact".into()));
        assert_eq!(seen(&rows[1]), ("7".into(), "boxed".into()));
    }

    /// The refusal of a file, with the directory cut off.
    fn refusal(text: &[u8]) -> String {
        let text = load(text, BadRow::Refuse).unwrap_err().to_string();
        let places = text.lines().map(|line| match line.split_once("rows.jsonl") {
            Some((_, rest)) => rest.trim_start_matches(':').to_string(),
            None => line.to_string(),
        });
        places.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn columns_become_a_task() {
        let text = br#"{"prompt": "2+2?", "answer": 4, "level": "easy", "tags": ["a", 1]}

{"id": "row-b", "answer": "x", "prompt": [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]}
{"id": 7, "prompt": "p", "answer": true}
{"prompt": "p", "answer": null}
{"prompt": "p", "answer": -2.5}"#;
        let prompts = load(text, BadRow::Refuse).unwrap();
        assert_eq!(prompts.skipped, 0);
        let first = &prompts.rows[0];
        assert_eq!((first.id.as_str(), first.label.as_deref()), ("1", Some("4")));
        assert_eq!(first.messages, [Message::new(Role::User, "2+2?")]);
        let fields = [("level".to_string(), "easy".to_string()), ("tags".into(), "[\"a\",1]".into())];
        assert_eq!(first.fields, fields);
        assert_eq!(prompts.rows[1].id, "row-b");
        assert_eq!(
            prompts.rows[1].messages,
            [Message::new(Role::System, "be short"), Message::new(Role::User, "hi")]
        );
        let rest: Vec<_> =
            prompts.rows[2..].iter().map(|row| (row.id.as_str(), row.label.as_deref())).collect();
        assert_eq!(
            rest,
            [("7", Some("true")), ("5", None), ("6", Some("-2.5"))],
            "blank lines count as lines"
        );
    }

    #[test]
    fn every_kind_of_malformed_row_is_named() {
        let cases: [(&[u8], &str); 13] = [
            (b"{\"prompt\": ", "not JSON: EOF while parsing a value at column 11"),
            (b"[1]", "expected a JSON object, found a list"),
            (b"{\"answer\": 1}", "there is no column prompt, which should hold the prompt"),
            (b"{\"prompt\": \"  \"}", "column prompt: the prompt is empty"),
            (b"{\"prompt\": []}", "column prompt: the list of messages is empty"),
            (b"{\"prompt\": 3}", "column prompt: expected a string or a list of messages, found a number"),
            (
                b"{\"prompt\": [{\"role\": \"robot\", \"content\": \"x\"}]}",
                "column prompt: message 1: unknown variant `robot`, \
                 expected one of `system`, `user`, `assistant`, `tool`",
            ),
            (b"{\"prompt\": [{\"role\": \"user\"}]}", "column prompt: message 1: missing field `content`"),
            (
                b"{\"prompt\": [{\"role\": \"user\", \"content\": 1}]}",
                "column prompt: message 1: invalid type: integer `1`, expected a string",
            ),
            (b"{\"prompt\": \"\xff\"}", "not UTF-8: the byte at column 13 starts no character"),
            (
                b"{\"prompt\": \"p\", \"answer\": [1]}",
                "column answer: expected a string, a number or a boolean, found a list",
            ),
            (
                b"{\"prompt\": \"p\", \"answer\": 123456789012345678901234567890}",
                "column answer: a number this large is not kept exactly; write it as a string",
            ),
            (
                b"{\"prompt\": \"p\", \"id\": {}}",
                "column id: expected a string, a number or a boolean, found an object",
            ),
        ];
        for (row, what) in cases {
            let text = [b"{\"prompt\": \"fine\"}\n", row, b"\n"].concat();
            let expected = format!(
                " has 1 malformed row\n2: {what}\nmend them, or leave malformed rows out with data.on_bad_row = \"skip\""
            );
            assert_eq!(refusal(&text), expected);
            let skipped = load(&text, BadRow::Skip).unwrap();
            assert_eq!((skipped.rows.len(), skipped.skipped), (1, 1));
        }
    }

    #[test]
    fn a_refusal_shows_five_and_counts_all() {
        let text = refusal("nope\n".repeat(8).as_bytes());
        assert!(text.starts_with(" has 8 malformed rows\n1: not JSON"), "{text}");
        assert!(text.contains("\n5: not JSON") && !text.contains("\n6: "), "{text}");
        assert!(text.contains("\n  and 3 more\n"), "{text}");
    }

    #[test]
    fn nothing_usable_is_an_error() {
        assert_eq!(refusal(b"\n \n"), " has no usable row (0 malformed rows were skipped)");
        let error = load(b"nope", BadRow::Skip).unwrap_err();
        assert!(matches!(error, DataError::Empty { skipped: 1, .. }), "{error}");
        let missing = Prompts::load(
            Path::new("/nonexistent/rows"),
            "prompt",
            "answer",
            BadRow::Skip,
            &Parameters::new(),
        );
        assert!(matches!(missing, Err(DataError::Read { .. })));
    }

    #[test]
    fn a_pass_has_its_own_order() {
        let text = "{\"prompt\": \"p\"}\n".repeat(50);
        let prompts = load(text.as_bytes(), BadRow::Refuse).unwrap();
        assert_eq!(prompts.order(1, 0, false), (0..50).collect::<Vec<_>>());
        let (first, second) = (prompts.order(1, 0, true), prompts.order(1, 1, true));
        assert_eq!(first, prompts.order(1, 0, true));
        assert!(first != second && first != prompts.order(2, 0, true));
        let mut sorted = second;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }
}
