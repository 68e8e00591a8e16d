//! The command line: each command's arguments are in its own module.

use crate::error::AuthorError;
use crate::{add, bench, build, check, inspect, list, new, pull, push, test};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
enum Request {
    New(new::Args),
    Build(build::Args),
    Check(check::Args),
    Test(test::Args),
    Bench(bench::Args),
    Run(crate::run::Args),
    List(list::Args),
    Inspect(inspect::Args),
    Push(push::Args),
    Pull(pull::Args),
    Add(add::Args),
}

/// Where plugins are looked for by name.
#[derive(Debug, Args)]
pub(crate) struct SearchPath {
    /// Directories to look for plugins in, before the standard ones, separated by commas
    #[arg(long = "plugins.path", value_name = "DIR,…", value_delimiter = ',')]
    pub(crate) path: Vec<PathBuf>,
}

/// The commands, to be parsed by themselves or as `plugin` of another command.
pub fn command() -> Command {
    let command = Command::new("plugin")
        .about("Write, check, try and share plugins: agents, rewards, estimators and losses")
        .after_help(
            "A first plugin, here called brevity:\n  \
             new brevity --kind reward   makes a project, in Rust unless --lang says otherwise\n  \
             build brevity               writes brevity/brevity.wasm\n  \
             check brevity               tries it on what is hard\n  \
             test brevity                tries the cases in brevity/cases.toml\n  \
             run brevity --label 4       scores what you type\n\
             The one file is all that a run, or anybody else, needs: molt train --reward.name brevity/brevity.wasm",
        )
        .subcommand_required(true)
        .arg_required_else_help(true);
    Request::augment_subcommands(command)
}

/// Does what [`command`] parsed; the result is the exit code.
///
/// # Errors
/// Anything that kept the command from its end. Findings of a check are not an error but exit code 1.
pub fn run(matches: &ArgMatches) -> Result<u8, AuthorError> {
    let request = Request::from_arg_matches(matches)
        .map_err(|error| AuthorError::user(error.to_string(), "see `molt plugin --help`"))?;
    match request {
        Request::New(args) => new::run(args),
        Request::Build(args) => build::run(args),
        Request::Check(args) => check::run(&args),
        Request::Test(args) => test::run(&args),
        Request::Bench(args) => bench::run(&args),
        Request::Run(args) => crate::run::run(&args),
        Request::List(args) => list::run(&args),
        Request::Inspect(args) => inspect::run(&args),
        Request::Push(args) => push::run(args),
        Request::Pull(args) => pull::run(args),
        Request::Add(args) => add::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_no_fault_with_the_commands() {
        command().debug_assert();
    }
}
