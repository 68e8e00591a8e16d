//! What the settings of every command have in common.

use super::{EvalSettings, Key, SftSettings, TrainSettings, keys, overlay};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// The settings of one command.
pub trait Settings: Serialize + DeserializeOwned + JsonSchema + Default {
    /// Checks everything that needs no I/O.
    ///
    /// # Errors
    /// All problems together.
    fn validate(&self) -> Result<(), SettingsError>;

    /// Keys of another command, whose files this one takes as well: it reads what it has itself, and leaves the rest.
    fn also_in_files() -> Vec<Key> {
        Vec::new()
    }

    /// With what some settings imply of others that were not given.
    #[must_use]
    fn resolved(self, _is_given: impl Fn(&str) -> bool) -> Self {
        self
    }

    /// The resolved settings as a TOML file that [`super::load`] reads back unchanged.
    ///
    /// # Errors
    /// A path that is not UTF-8.
    fn to_toml(&self) -> Result<String, SettingsError> {
        overlay::write(self)
    }
}

impl Settings for TrainSettings {
    fn validate(&self) -> Result<(), SettingsError> {
        none_of(self.problems())
    }

    fn resolved(self, is_given: impl Fn(&str) -> bool) -> Self {
        self.with_teacher(is_given)
    }
}

impl Settings for SftSettings {
    fn validate(&self) -> Result<(), SettingsError> {
        none_of(self.problems())
    }
}

impl Settings for EvalSettings {
    /// Those of a training run, whose model, agent and rewards are to be evaluated.
    fn also_in_files() -> Vec<Key> {
        keys::<TrainSettings>()
    }

    fn validate(&self) -> Result<(), SettingsError> {
        none_of(self.problems())
    }
}

fn none_of(problems: Vec<Problem>) -> Result<(), SettingsError> {
    if problems.is_empty() { Ok(()) } else { Err(SettingsError { problems }) }
}

/// Everything that is wrong with the settings; at least one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is no TOML.
    #[error("{place}: {detail}")]
    Syntax { place: String, detail: String },
    /// A key that the command does not have.
    #[error("{place}: there is no setting {key}{}", suggestion(.nearest))]
    Unknown { place: String, key: String, nearest: Option<String> },
    /// A key that other frameworks have, and this one has a reason not to have.
    #[error("{place}: {key} {sentence}")]
    Absent { place: String, key: String, sentence: &'static str },
    /// A value of the wrong type.
    #[error("{place}: {key} is {value}, but must be {expected}")]
    Type { place: String, key: String, value: String, expected: String },
    /// A value that cannot be used, by itself or together with another.
    #[error("{key} {sentence}")]
    Invalid { key: String, sentence: String },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

impl SettingsError {
    /// What to do, for who gave the settings to `command`.
    pub fn help(&self, command: &str) -> String {
        if self.problems.iter().all(|problem| matches!(problem, Problem::Syntax { .. })) {
            return "settings are written in TOML: a [section], and under it key = value, with quotes around text".into();
        }
        format!("`molt {command} --help` lists every setting")
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests;
