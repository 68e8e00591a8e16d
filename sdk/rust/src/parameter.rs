//! Parameters: what a plugin lets a run set.

use crate::bindings::types::{FloatRange, IntegerRange, ParameterKind};
use std::ops::RangeInclusive;

pub use crate::bindings::types::Parameter;

impl Parameter {
    /// A number. An infinite bound is none.
    pub fn float(name: &str, default: f64, range: RangeInclusive<f64>, doc: &str) -> Self {
        let range = FloatRange { default, min: *range.start(), max: *range.end() };
        Self::new(name, ParameterKind::Float(range), doc)
    }

    /// A whole number.
    pub fn integer(name: &str, default: i32, range: RangeInclusive<i32>, doc: &str) -> Self {
        let range = IntegerRange { default, min: *range.start(), max: *range.end() };
        Self::new(name, ParameterKind::Integer(range), doc)
    }

    /// A switch.
    pub fn boolean(name: &str, default: bool, doc: &str) -> Self {
        Self::new(name, ParameterKind::Boolean(default), doc)
    }

    /// One of these words; the first is the default.
    pub fn choice(name: &str, words: &[&str], doc: &str) -> Self {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        Self::new(name, ParameterKind::Choice(words), doc)
    }

    fn new(name: &str, kind: ParameterKind, doc: &str) -> Self {
        Self { name: name.to_owned(), doc: doc.to_owned(), kind }
    }

    /// The value if a run sets none, as `estimate` gets it.
    pub fn default_value(&self) -> f64 {
        match &self.kind {
            ParameterKind::Float(range) => range.default,
            ParameterKind::Integer(range) => f64::from(range.default),
            ParameterKind::Boolean(default) => f64::from(u8::from(*default)),
            ParameterKind::Choice(_) => 0.0,
        }
    }
}
