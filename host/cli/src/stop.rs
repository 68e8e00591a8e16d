//! Why the command ends without success: what a person reads, and the exit code.

use std::error::Error;
use std::fmt;

/// Bad settings, bad input, a model, plugin or place that cannot be used: nothing was started.
pub(crate) const USER: u8 = 2;
/// A run that had started failed.
pub(crate) const FAILED: u8 = 1;
/// Ctrl-C, as shells count it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A sentence, why, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) code: u8,
    pub(crate) error: String,
    /// From the nearest cause to the deepest.
    pub(crate) because: Vec<String>,
    pub(crate) help: String,
}

impl Stop {
    pub(crate) fn user(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: USER, error: error.into(), because: Vec::new(), help: help.into() }
    }

    pub(crate) fn failed(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: FAILED, ..Self::user(error, help) }
    }

    pub(crate) fn because(mut self, cause: &dyn Error) -> Self {
        self.because = chain(cause);
        self
    }
}

/// Turns a library's error into a [`Stop`] with a sentence of what was attempted and what to do.
pub(crate) trait OrStop<T> {
    /// Nothing was started yet.
    fn or_user(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, Stop>;
    /// The run had started.
    fn or_failed(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, Stop>;
}

impl<T, E: Error + 'static> OrStop<T> for Result<T, E> {
    fn or_user(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, Stop> {
        self.map_err(|cause| Stop::user(error, help).because(&cause))
    }

    fn or_failed(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, Stop> {
        self.map_err(|cause| Stop::failed(error, help).because(&cause))
    }
}

/// The error and its sources, without those that the one before already tells.
pub(crate) fn chain(error: &dyn Error) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if texts.last().is_none_or(|before| !before.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.error)?;
        for cause in &self.because {
            write!(f, "\n  because {}", cause.replace('\n', "\n    "))?;
        }
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.help) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read m/config.json")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_chain_is_told_once_and_ends_with_what_to_do() {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let result: Result<(), _> = Err(Outer(source));
        let stop =
            result.or_user("the model m cannot be used", "give another model.path").expect_err("is one");
        assert_eq!(
            stop.to_string(),
            "error: the model m cannot be used\n  because cannot read m/config.json\n  because no such file\n  \
             help: give another model.path"
        );
        assert_eq!(stop.code, 2);
    }

    #[test]
    fn a_cause_that_is_already_told_is_left_out() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot write x: {0}\nsecond line")]
        struct Told(#[source] std::io::Error);
        let stop = Stop::failed("it broke", "").because(&Told(std::io::Error::other("disk full")));
        assert_eq!(stop.to_string(), "error: it broke\n  because cannot write x: disk full\n    second line");
        assert_eq!(stop.code, 1);
    }
}
