//! `molt plugin …`: the author's tools, which need no model.

use crate::stop::Stop;
use clap::{ArgMatches, Command};

pub(crate) fn command() -> Command {
    molt_author::command()
}

/// The result is the exit code: a check that found something is no error.
pub(crate) fn run(matches: &ArgMatches) -> Result<u8, Stop> {
    molt_author::run(matches)
}
