//! `metrics.jsonl`: one JSON object per step.

use crate::ObserveError;
use crate::rundir::write_whole;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The metrics of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub step: u64,
    /// Only finite numbers.
    pub values: BTreeMap<String, f64>,
}

pub(crate) struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file for what comes after `step`; what it has of later steps is removed.
    pub(crate) fn open(path: PathBuf, step: u64) -> Result<Self, ObserveError> {
        match fs::read(&path) {
            Ok(bytes) => {
                let kept = until(&bytes, step);
                if kept.len() < bytes.len() {
                    write_whole(&path, kept).map_err(ObserveError::write(&path))?;
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(ObserveError::read(&path)(error)),
        }
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let file = opened.map_err(ObserveError::write(&path))?;
        Ok(Self { path, file })
    }

    /// Appends a whole line in one write, so that a killed process leaves whole lines.
    /// A number that is not finite is written as null.
    pub(crate) fn append(
        &mut self,
        step: u64,
        time: f64,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<(), ObserveError> {
        let mut row = Map::new();
        row.insert("step".into(), step.into());
        row.insert("time".into(), time.into());
        row.extend(metrics.iter().map(|(name, value)| (name.clone(), Value::from(*value))));
        let line = format!("{}\n", Value::Object(row));
        self.file.write_all(line.as_bytes()).map_err(ObserveError::write(&self.path))
    }
}

/// Reads `metrics.jsonl` back. A last line without a line end was torn by a crash, and is left out.
///
/// # Errors
/// A file that cannot be read, or any other line that is not an object with a step.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, ObserveError> {
    let bytes = fs::read(path).map_err(ObserveError::read(path))?;
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split(|b| *b == b'\n').enumerate();
    let rows = lines.filter(|(_, line)| !line.is_empty()).map(|(i, line)| {
        row(line).map_err(|detail| ObserveError::Metrics { path: path.to_owned(), line: i + 1, detail })
    });
    rows.collect()
}

/// The lines before the first one that is torn, or of a step after `step`.
fn until(bytes: &[u8], step: u64) -> &[u8] {
    let mut end = 0;
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        if !line.ends_with(b"\n") || row(line).is_ok_and(|row| row.step > step) {
            break;
        }
        end += line.len();
    }
    &bytes[..end]
}

fn row(line: &[u8]) -> Result<Row, String> {
    let object: Map<String, Value> = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let step = object.get("step").and_then(Value::as_u64).ok_or("it has no step")?;
    let numbers = object.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?)));
    let values = numbers.filter(|(name, _)| name != "step" && name != "time").collect();
    Ok(Row { step, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_left_out() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(path.clone(), 0).expect("creates");
        for step in 1..=2 {
            let metrics = BTreeMap::from([("reward".to_owned(), step as f64), ("bad".to_owned(), f64::NAN)]);
            file.append(step, 1.5, &metrics).expect("appends");
        }
        file.file.write_all(b"{\"step\": 3, \"rew").expect("writes");
        let rows = read_metrics(&path).expect("reads");
        let row = |step: u64| Row { step, values: BTreeMap::from([("reward".to_owned(), step as f64)]) };
        assert_eq!(rows, [row(1), row(2)]);
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\nnonsense\n{\"step\":2}\n").expect("writes");
        let error = read_metrics(&path).expect_err("must be refused").to_string();
        assert!(error.contains("metrics.jsonl:2: not a line of metrics"), "{error}");
    }
}
