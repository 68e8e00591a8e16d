//! Checkpoints: when they are written, and how a run goes on from one.

use super::{Settings, SettingsError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use toml::{Table, Value};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Ckpt {
    /// Write a checkpoint after every so many steps and at the end, to checkpoints/ in the run directory. Unset: none.
    pub every: Option<u64>,
    /// Go on from the last good checkpoint of this run directory, or from this checkpoint. With the same run.dir the
    /// run goes on in place, and begins if there is no checkpoint yet.
    pub load: Option<PathBuf>,
    /// Checkpoints of the run that are kept; older ones are removed when a new one is whole.
    pub keep: usize,
    /// GiB that the kept checkpoints may take; the newest always stays. Unset: no limit.
    pub keep_gib: Option<f64>,
    /// Put the model, ready to be loaded or uploaded, into every checkpoint as model/.
    pub export: bool,
}

impl Default for Ckpt {
    fn default() -> Self {
        Self { every: None, load: None, keep: 2, keep_gib: None, export: false }
    }
}

/// What a checkpoint's position in the data, its random numbers and the meaning of what it holds depend on: a run that
/// goes on has the same.
const FIXED: [&str; 15] = [
    "run.seed",
    "model.compute",
    "data.shuffle",
    "data.prompt_key",
    "data.label_key",
    "data.reply_key",
    "data.on_bad_row",
    "data.weight",
    "rollout.batch_size",
    "rollout.samples_per_prompt",
    "train.sync",
    "sft.batch_size",
    "sft.max_context",
    "optim.kind",
    "lora.alpha",
];

/// A setting that a run has and the one that it goes on from had not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    /// As TOML; `-` where it is unset.
    pub before: String,
    pub now: String,
    /// The run cannot go on with another value.
    pub is_fixed: bool,
}

/// What is different in `settings` from those that were written to `before` by [`Settings::to_toml`], but for where
/// files are.
///
/// # Errors
/// If either is no TOML.
pub fn changes(settings: &impl Settings, before: &str) -> Result<Vec<Change>, SettingsError> {
    let flat = |text: &str| -> Result<BTreeMap<String, String>, SettingsError> {
        let table: Table = toml::from_str(text).map_err(|error| SettingsError {
            problems: vec![super::Problem::Syntax {
                place: "the settings of the checkpoint".into(),
                detail: error.message().to_owned(),
            }],
        })?;
        let mut all = BTreeMap::new();
        flatten(&table, "", &mut all);
        Ok(all)
    };
    let (now, before) = (flat(&settings.to_toml()?)?, flat(before)?);
    let elsewhere = |key: &str| key == "run.dir" || key.starts_with("ckpt.");
    let keys: BTreeSet<&String> = now.keys().chain(before.keys()).collect();
    let value = |of: &BTreeMap<String, String>, key: &str| of.get(key).cloned().unwrap_or_else(|| "-".into());
    let changes = keys.into_iter().filter(|key| !elsewhere(key) && now.get(*key) != before.get(*key));
    Ok(changes
        .map(|key| Change {
            key: key.clone(),
            before: value(&before, key),
            now: value(&now, key),
            is_fixed: FIXED.contains(&key.as_str()),
        })
        .collect())
}

fn flatten(table: &Table, prefix: &str, all: &mut BTreeMap<String, String>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) => flatten(inner, &key, all),
            other => drop(all.insert(key, other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Lora, Sft, SftSettings, TrainSettings};

    #[test]
    fn what_changed_and_what_must_not() {
        let before = TrainSettings::default();
        let text = before.to_toml().expect("TOML");
        assert_eq!(changes(&before, &text), Ok(vec![]));
        let mut now = before.clone();
        now.run.dir = Some("elsewhere".into());
        now.ckpt.every = Some(3);
        now.optim.lr = 0.5;
        now.train.max_steps = Some(7);
        now.run.seed = 1;
        let change = |key: &str, before: &str, now: &str, is_fixed| Change {
            key: key.into(),
            before: before.into(),
            now: now.into(),
            is_fixed,
        };
        let expected = [
            change("optim.lr", "0.000001", "0.5", false),
            change("run.seed", "0", "1", true),
            change("train.max_steps", "-", "7", false),
        ];
        assert_eq!(changes(&now, &text), Ok(expected.into()));
        assert!(changes(&now, "[").is_err());
    }

    #[test]
    fn every_fixed_key_is_one_of_a_command() {
        let mut known = BTreeMap::new();
        let sft = Sft { max_context: Some(2), ..Sft::default() };
        let lora = Lora { alpha: Some(2.0), ..Lora::default() };
        let sft = SftSettings { sft, lora, ..SftSettings::default() };
        for text in [TrainSettings::default().to_toml(), sft.to_toml()] {
            flatten(&toml::from_str(&text.expect("TOML")).expect("TOML"), "", &mut known);
        }
        for key in FIXED {
            assert!(known.contains_key(key), "{key}");
        }
    }
}
