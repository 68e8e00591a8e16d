//! What a run sets the parameters of a plugin to. Which there are, the plugin says.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The values of a plugin's parameters, by name.
pub type Parameters = BTreeMap<String, ParameterValue>;

/// A value of a parameter, as a run gives it. Its plugin says what it has to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParameterValue {
    Switch(bool),
    Number(f64),
    Word(String),
}

/// The types that [`super::Kind::Parameter`] stands for.
impl JsonSchema for ParameterValue {
    fn schema_name() -> Cow<'static, str> {
        "ParameterValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["boolean", "number", "string"] })
    }
}

impl ParameterValue {
    /// As a column of a row holds it: a word without quotes.
    pub fn text(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(on) => on.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => write!(f, "{word:?}"),
        }
    }
}
