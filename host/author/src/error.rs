//! Why a command ends without success: what a person reads, and the exit code.

use std::error::Error;
use std::fmt;

/// Bad arguments, bad input, a file or tool that is missing: nothing was done.
pub const USER: u8 = 2;
/// What had begun failed, or a check found something.
pub const FAILED: u8 = 1;

/// A sentence, why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorError {
    /// The exit code: [`USER`] or [`FAILED`].
    pub code: u8,
    pub error: String,
    /// From the nearest cause to the deepest.
    pub because: Vec<String>,
    /// What to do.
    pub help: String,
}

impl AuthorError {
    pub fn user(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: USER, error: error.into(), because: Vec::new(), help: help.into() }
    }

    pub fn failed(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: FAILED, ..Self::user(error, help) }
    }

    pub fn because(mut self, cause: &dyn Error) -> Self {
        self.because = chain(cause);
        self
    }
}

/// Turns a library's error into an [`AuthorError`] with a sentence of what was attempted and what to do.
pub trait OrAuthor<T> {
    /// Nothing was done yet.
    fn or_user(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, AuthorError>;
    /// Something had begun.
    fn or_failed(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, AuthorError>;
}

impl<T, E: Error + 'static> OrAuthor<T> for Result<T, E> {
    fn or_user(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, AuthorError> {
        self.map_err(|cause| AuthorError::user(error, help).because(&cause))
    }

    fn or_failed(self, error: impl Into<String>, help: impl Into<String>) -> Result<T, AuthorError> {
        self.map_err(|cause| AuthorError::failed(error, help).because(&cause))
    }
}

/// The error and its sources, without those that the one before already tells.
pub fn chain(error: &dyn Error) -> Vec<String> {
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

impl fmt::Display for AuthorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", harmless(&self.error))?;
        for cause in &self.because {
            write!(f, "\n  because {}", harmless(cause).replace('\n', "\n    "))?;
        }
        if self.help.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  help: {}", harmless(&self.help).replace('\n', "\n    "))
        }
    }
}

/// Without what moves a terminal's cursor: a registry's words and a file's name may hold anything.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || "\n\t".contains(*c)).collect()
}

impl Error for AuthorError {}

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
        let stop = AuthorError::failed("it broke", "").because(&Told(std::io::Error::other("disk full")));
        assert_eq!(stop.to_string(), "error: it broke\n  because cannot write x: disk full\n    second line");
        assert_eq!(stop.code, 1);
    }

    #[test]
    fn what_others_say_does_not_reach_the_terminal_as_commands() {
        let answer = std::io::Error::other("\x1b[2Jall is well\r\u{9b}1A\nreally");
        let stop = AuthorError::user("evil\x07.wasm cannot be added", "see evil\x1b[1A").because(&answer);
        assert_eq!(
            stop.to_string(),
            "error: evil.wasm cannot be added\n  because [2Jall is well1A\n    really\n  help: see evil[1A"
        );
    }
}
