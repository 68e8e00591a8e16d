//! Data files: one JSON object per line, every malformed row named by file and line.

use molt_core::settings::BadRow;
use serde_json::{Map, Value};
use std::fmt;
use std::path::{Path, PathBuf};

/// How many malformed rows a refusal spells out.
const SHOWN: usize = 5;

/// A data file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot read the data file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no usable row ({skipped} malformed rows were skipped)", path.display())]
    Empty { path: PathBuf, skipped: usize },
    #[error("{}", refusal(path, first, *total))]
    Rows {
        path: PathBuf,
        /// The first malformed rows, five at most.
        first: Vec<BadLine>,
        /// How many there are.
        total: usize,
    },
}

/// A malformed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

fn refusal(path: &Path, first: &[BadLine], total: usize) -> String {
    let rows = if total == 1 { "row" } else { "rows" };
    let mut text = format!("{} has {total} malformed {rows}", path.display());
    for BadLine { line, what } in first {
        text += &format!("\n  {}:{line}: {what}", path.display());
    }
    if total > first.len() {
        text += &format!("\n  and {} more", total - first.len());
    }
    text + "\nmend them, or leave malformed rows out with data.on_bad_row = \"skip\""
}

/// The usable rows of a data file.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows<T> {
    /// In the order of the file. At least one.
    pub rows: Vec<T>,
    /// Malformed rows that were left out.
    pub skipped: usize,
}

/// Reads the JSONL file at `path`. `parse` turns the object of one line, numbered from 1, into a row, or
/// says what is wrong with it. Blank lines are no rows.
///
/// # Errors
/// If the file cannot be read, has no usable row, or has a malformed one and `on_bad_row` is to refuse.
pub fn read<T, E: fmt::Display>(
    path: &Path,
    on_bad_row: BadRow,
    mut parse: impl FnMut(usize, Map<String, Value>) -> Result<T, E>,
) -> Result<Rows<T>, DataError> {
    let bytes = std::fs::read(path).map_err(|source| DataError::Read { path: path.to_path_buf(), source })?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let (mut rows, mut first, mut total) = (Vec::new(), Vec::new(), 0);
    for (index, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let line = index + 1;
        match object(bytes).and_then(|object| parse(line, object).map_err(|what| what.to_string())) {
            Ok(row) => rows.push(row),
            Err(what) => {
                total += 1;
                if first.len() < SHOWN {
                    first.push(BadLine { line, what });
                }
            }
        }
    }
    if total > 0 && on_bad_row == BadRow::Refuse {
        return Err(DataError::Rows { path: path.to_path_buf(), first, total });
    }
    if rows.is_empty() {
        return Err(DataError::Empty { path: path.to_path_buf(), skipped: total });
    }
    Ok(Rows { rows, skipped: total })
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| format!("not UTF-8: the byte at column {} starts no character", e.valid_up_to() + 1))?;
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("expected a JSON object, found {}", kind(&other))),
        Err(e) => Err(format!("not JSON: {}", without_line(&e))),
    }
}

/// The message of a JSON error with the column alone: its line is always 1, since each line is read alone.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} at column {}", error.column())
}

/// What a JSON value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
