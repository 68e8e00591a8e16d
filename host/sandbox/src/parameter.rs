//! Parameters of a plugin: what it declares, and the values that a run gives them.

use molt_core::settings::{ParameterValue, Parameters, nearest};
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

use crate::bindings::types as wit;
use crate::error::Cause;
use crate::quote;

/// Parameters of one plugin at most, and words of one choice.
const MOST: usize = 64;

/// Something of a plugin that a run may set.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    /// What it does, in one line.
    pub doc: String,
    pub kind: ParameterKind,
}

/// What a value has to be. Bounds are inclusive; an infinite one is none.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterKind {
    Float {
        default: f64,
        min: f64,
        max: f64,
    },
    Integer {
        default: i32,
        min: i32,
        max: i32,
    },
    Boolean {
        default: bool,
    },
    /// The first is the default.
    Choice {
        words: Vec<String>,
    },
}

/// A run sets a parameter that the plugin does not have, or to what it cannot be.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ParameterError {
    #[error("there is no parameter {name}{}", meant(.near, .known))]
    Unknown { name: String, near: Option<String>, known: Vec<String> },
    #[error("{name} is {value}, but must be {expected}")]
    Value { name: String, value: String, expected: String },
}

fn meant(near: &Option<String>, known: &[String]) -> String {
    match (near, known) {
        (Some(near), _) => format!("; did you mean {near}?"),
        (None, []) => ": the plugin has none; leave it out".to_owned(),
        (None, known) => format!(": the plugin has {}", known.join(", ")),
    }
}

impl Parameter {
    /// The value if a run sets none, as people write it.
    pub fn default_text(&self) -> String {
        match &self.kind {
            ParameterKind::Float { default, .. } => default.to_string(),
            ParameterKind::Integer { default, .. } => default.to_string(),
            ParameterKind::Boolean { default } => default.to_string(),
            ParameterKind::Choice { words } => words.first().cloned().unwrap_or_default(),
        }
    }

    /// The value if a run sets none, as the plugin gets it.
    pub fn default_value(&self) -> f64 {
        match &self.kind {
            ParameterKind::Float { default, .. } => *default,
            ParameterKind::Integer { default, .. } => f64::from(*default),
            ParameterKind::Boolean { default } => f64::from(u8::from(*default)),
            ParameterKind::Choice { .. } => 0.0,
        }
    }

    /// The least and the most that a run may set, as the plugin gets them; the default where there is no bound.
    pub fn bounds(&self) -> [f64; 2] {
        match &self.kind {
            ParameterKind::Float { default, min, max } => {
                [*min, *max].map(|bound| if bound.is_finite() { bound } else { *default })
            }
            ParameterKind::Integer { default, min, max } => [(*min, i32::MIN), (*max, i32::MAX)]
                .map(|(bound, none)| f64::from(if bound == none { *default } else { bound })),
            ParameterKind::Boolean { .. } => [0.0, 1.0],
            ParameterKind::Choice { words } => [0.0, words.len().saturating_sub(1) as f64],
        }
    }

    /// What the plugin gets for `value`, if it may be that.
    fn number(&self, value: &ParameterValue) -> Option<f64> {
        match (&self.kind, value) {
            (ParameterKind::Float { min, max, .. }, ParameterValue::Number(number)) => {
                Some(*number).filter(|number| number.is_finite() && min <= number && number <= max)
            }
            (ParameterKind::Integer { min, max, .. }, ParameterValue::Number(number)) => {
                let range = f64::from(*min)..=f64::from(*max);
                Some(*number).filter(|number| number.fract() == 0.0 && range.contains(number))
            }
            (ParameterKind::Boolean { .. }, ParameterValue::Switch(on)) => Some(f64::from(u8::from(*on))),
            (ParameterKind::Choice { words }, ParameterValue::Word(word)) => {
                words.iter().position(|known| known == word).map(|place| place as f64)
            }
            _ => None,
        }
    }

    /// What is wrong with the declaration.
    fn problem(&self) -> Option<String> {
        let word = |word: &str| {
            let mut characters = word.chars();
            characters.next().is_some_and(|first| first.is_ascii_lowercase())
                && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                && word.len() <= MOST
        };
        if !word(&self.name) {
            return Some("its name is not of lower-case letters, digits and `_`".to_owned());
        }
        match &self.kind {
            ParameterKind::Float { default, min, max } => {
                let fits = default.is_finite() && min <= default && default <= max;
                (!fits).then(|| format!("its default {default} is not from {min} to {max}"))
            }
            ParameterKind::Integer { default, min, max } => {
                let fits = (min..=max).contains(&default);
                (!fits).then(|| format!("its default {default} is not from {min} to {max}"))
            }
            ParameterKind::Boolean { .. } => None,
            ParameterKind::Choice { words } => {
                let different: BTreeSet<&String> = words.iter().collect();
                let fits = (1..=MOST).contains(&different.len()) && different.len() == words.len();
                (!fits || !words.iter().all(|text| word(text))).then(|| {
                    "its words are not different, or not of lower-case letters, digits and `_`".to_owned()
                })
            }
        }
    }
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |f: &mut fmt::Formatter<'_>, what: &str, min: Option<String>, max: Option<String>| match (
            min, max,
        ) {
            (Some(min), Some(max)) => write!(f, "{what} from {min} to {max}"),
            (Some(min), None) => write!(f, "{what} of at least {min}"),
            (None, Some(max)) => write!(f, "{what} of at most {max}"),
            (None, None) => f.write_str(what),
        };
        match self {
            Self::Float { min, max, .. } => {
                let bound = |bound: &f64| bound.is_finite().then(|| bound.to_string());
                range(f, "a number", bound(min), bound(max))
            }
            Self::Integer { min, max, .. } => {
                let bound = |bound: i32, none: i32| (bound != none).then(|| bound.to_string());
                range(f, "a whole number", bound(*min, i32::MIN), bound(*max, i32::MAX))
            }
            Self::Boolean { .. } => f.write_str("true or false"),
            Self::Choice { words } => write!(f, "one of {}", words.join(", ")),
        }
    }
}

/// What a plugin declared, once it is known to make sense.
pub(crate) fn declared(parameters: Vec<wit::Parameter>) -> Result<Vec<Parameter>, Cause> {
    if parameters.len() > MOST {
        return Err(Cause::BadReturn(format!("it declares more than {MOST} parameters")));
    }
    let mut seen = BTreeSet::new();
    let mut declared = Vec::new();
    for wit::Parameter { name, doc, kind } in parameters {
        let kind = match kind {
            wit::ParameterKind::Float(wit::FloatRange { default, min, max }) => {
                ParameterKind::Float { default, min, max }
            }
            wit::ParameterKind::Integer(wit::IntegerRange { default, min, max }) => {
                ParameterKind::Integer { default, min, max }
            }
            wit::ParameterKind::Boolean(default) => ParameterKind::Boolean { default },
            wit::ParameterKind::Choice(words) => ParameterKind::Choice { words },
        };
        let parameter = Parameter { name, doc: quote::beginning(&doc), kind };
        let twice = || (!seen.insert(parameter.name.clone())).then(|| "another has its name".to_owned());
        if let Some(problem) = parameter.problem().or_else(twice) {
            let name = quote::beginning(&parameter.name);
            return Err(Cause::BadReturn(format!("the parameter {name:?} cannot be: {problem}")));
        }
        declared.push(parameter);
    }
    Ok(declared)
}

/// The value of every declared parameter, in order: the one that the run gives, or the default.
///
/// # Errors
/// The run sets a parameter that is not declared, or one to what it cannot be.
pub fn parameter_values(declared: &[Parameter], given: &Parameters) -> Result<Vec<f64>, ParameterError> {
    let names = || declared.iter().map(|parameter| parameter.name.as_str());
    if let Some(name) = given.keys().find(|name| !names().any(|known| known == *name)) {
        return Err(ParameterError::Unknown {
            name: name.clone(),
            near: nearest(name, names()),
            known: names().map(str::to_owned).collect(),
        });
    }
    let value = |parameter: &Parameter| match given.get(&parameter.name) {
        None => Ok(parameter.default_value()),
        Some(value) => parameter.number(value).ok_or_else(|| ParameterError::Value {
            name: parameter.name.clone(),
            value: value.to_string(),
            expected: parameter.kind.to_string(),
        }),
    };
    declared.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wit::ParameterKind as Wit;

    fn float(default: f64, min: f64, max: f64) -> Wit {
        Wit::Float(wit::FloatRange { default, min, max })
    }

    fn integer(default: i32, min: i32, max: i32) -> Wit {
        Wit::Integer(wit::IntegerRange { default, min, max })
    }

    fn words(words: &[&str]) -> Wit {
        Wit::Choice(words.iter().map(|&word| word.to_owned()).collect())
    }

    fn declare(all: Vec<(&str, Wit)>) -> Result<Vec<Parameter>, Cause> {
        let parameter =
            |(name, kind): (&str, Wit)| wit::Parameter { name: name.into(), doc: "a\nb".into(), kind };
        declared(all.into_iter().map(parameter).collect())
    }

    fn all() -> Vec<Parameter> {
        declare(vec![
            ("gamma", float(1.0, 0.0, 1.0)),
            ("scale", float(2.0, f64::NEG_INFINITY, f64::INFINITY)),
            ("window", integer(-3, i32::MIN, 7)),
            ("centre", Wit::Boolean(true)),
            ("over", words(&["tokens", "rollouts"])),
        ])
        .expect("they make sense")
    }

    fn values(given: &[(&str, ParameterValue)]) -> Result<Vec<f64>, String> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        parameter_values(&all(), &given).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        use ParameterValue::{Number, Switch, Word};
        assert_eq!(values(&[]), Ok(vec![1.0, 2.0, -3.0, 1.0, 0.0]));
        let given = [
            ("gamma", Number(0.25)),
            ("scale", Number(-1e300)),
            ("window", Number(7.0)),
            ("centre", Switch(false)),
            ("over", Word("rollouts".into())),
        ];
        assert_eq!(values(&given), Ok(vec![0.25, -1e300, 7.0, 0.0, 1.0]));
        let bounds: Vec<[f64; 2]> = all().iter().map(Parameter::bounds).collect();
        assert_eq!(bounds, [[0.0, 1.0], [2.0, 2.0], [-3.0, 7.0], [0.0, 1.0], [0.0, 1.0]]);
        assert_eq!((all()[0].doc.as_str(), all()[4].default_text()), ("a b", "tokens".to_owned()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_could() {
        use ParameterValue::{Number, Switch, Word};
        let cases = [
            ("gama", Number(1.0), "there is no parameter gama; did you mean gamma?"),
            (
                "zzz",
                Number(1.0),
                "there is no parameter zzz: the plugin has gamma, scale, window, centre, over",
            ),
            ("gamma", Number(1.5), "gamma is 1.5, but must be a number from 0 to 1"),
            ("gamma", Number(f64::NAN), "gamma is NaN, but must be a number from 0 to 1"),
            ("scale", Number(f64::INFINITY), "scale is inf, but must be a number"),
            ("gamma", Switch(true), "gamma is true, but must be a number from 0 to 1"),
            ("window", Number(1.5), "window is 1.5, but must be a whole number of at most 7"),
            ("window", Number(8.0), "window is 8, but must be a whole number of at most 7"),
            ("centre", Number(1.0), "centre is 1, but must be true or false"),
            ("over", Word("words".into()), "over is \"words\", but must be one of tokens, rollouts"),
        ];
        for (name, value, expected) in cases {
            assert_eq!(values(&[(name, value)]), Err(expected.to_owned()));
        }
        let given = [("gamma".to_owned(), Number(1.0))].into();
        let error = parameter_values(&[], &given).expect_err("there is none").to_string();
        assert_eq!(error, "there is no parameter gamma: the plugin has none; leave it out");
    }

    #[test]
    fn declarations_that_make_no_sense_are_refused() {
        let float = |default| float(default, 0.0, 1.0);
        let bad = [
            vec![("", float(0.5))],
            vec![("Gamma", float(0.5))],
            vec![("kl-coef", float(0.5))],
            vec![("a", float(0.5)), ("a", Wit::Boolean(true))],
            vec![("a", float(1.5))],
            vec![("a", float(f64::NAN))],
            vec![("a", Wit::Float(wit::FloatRange { default: 0.0, min: f64::NAN, max: 1.0 }))],
            vec![("a", integer(0, 1, 2))],
            vec![("a", words(&[]))],
            vec![("a", words(&["b", "b"]))],
            vec![("a", words(&["true\u{202e}"]))],
            (0..65).map(|_| ("a", float(0.5))).collect(),
        ];
        for declaration in bad {
            let error = declare(declaration).expect_err("it makes no sense");
            assert!(matches!(error, Cause::BadReturn(_)), "{error:?}");
        }
    }
}
