//! Fuzzing, guided by the coverage of our own crates, on the stable toolchain.
//!
//! New inputs that reach new code are kept in the build output, and lead the next run. Those in the repository
//! are the ones that a run begins with anywhere.

use crate::cache::Cache;
use crate::{plugins, process, setup};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each is a binary `fuzz-NAME` of `molt-fuzz` and a folder `host/fuzz/corpus/NAME`.
const TARGETS: [&str; 3] = ["calls", "files", "texts"];

/// Seconds of all targets together, without being told.
const SECONDS: u64 = 60;

/// A file of 128 KiB can be a whole plugin; a longer one only takes longer.
const LONGEST: u64 = 128 << 10;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) seconds: u64,
    pub(crate) targets: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: SECONDS, targets: TARGETS.to_vec() }
    }
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options { targets: Vec::new(), ..Options::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--seconds" {
                let seconds = rest.next().context("--seconds needs a number")?;
                options.seconds = seconds
                    .parse()
                    .with_context(|| format!("--seconds needs a number, found {seconds:?}"))?;
            } else if let Some(target) = TARGETS.iter().find(|target| *target == argument) {
                options.targets.push(target);
            } else {
                bail!("no fuzz target called {argument:?}; there are {}", TARGETS.join(", "));
            }
        }
        if options.targets.is_empty() {
            options.targets = TARGETS.to_vec();
        }
        Ok(options)
    }
}

/// Builds the plugins and the targets, and runs each for its share of the time.
pub(crate) fn fuzz(options: &Options) -> Result<()> {
    let cache = setup::setup()?;
    plugins::build(&cache)?;
    run(&cache, options)
}

/// The same, with the plugins built.
pub(crate) fn run(cache: &Cache, options: &Options) -> Result<()> {
    let root = process::workspace_root();
    let wrapper = root.join("host/fuzz/coverage.sh");
    let mut build = process::cargo(["build", "--package", "molt-fuzz"]);
    // What an incremental build keeps of one compiler must not meet the other.
    build.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env("CARGO_INCREMENTAL", "0");
    process::run(&mut build)?;
    let share = (options.seconds / options.targets.len() as u64).max(1);
    for target in &options.targets {
        let place = cache.target().join("fuzz").join(target);
        let (found, crashes) = (place.join("corpus"), place.join("crashes"));
        for folder in [&found, &crashes] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let mut folders = vec![found, root.join("host/fuzz/corpus").join(target)];
        if *target == "files" {
            folders.extend(["plugins", "plugins-test"].map(|folder| cache.target().join(folder)));
        }
        eprintln!("── fuzz-{target} for {share} s");
        let status = command(&cache.target().join("debug"), target, share, &crashes, &folders)
            .status()
            .with_context(|| format!("cannot start fuzz-{target}"))?;
        if !status.success() {
            bail!(
                "fuzz-{target} found something ({status}): the input is in {}, and fuzz-{target} FILE runs it again",
                crashes.display()
            );
        }
    }
    Ok(())
}

fn command(binaries: &Path, target: &str, seconds: u64, crashes: &Path, folders: &[PathBuf]) -> Command {
    let mut command = Command::new(binaries.join(format!("fuzz-{target}")));
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg(format!("-max_len={LONGEST}"))
        // One input may take this long, and the process this much memory.
        .args(["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"])
        .args(folders)
        .env("CARGO_MANIFEST_DIR", process::workspace_root().join("host/fuzz"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options> {
        Options::parse(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn all_targets_without_being_told_which() {
        assert_eq!(parse(&[]).expect("nothing is enough"), Options::default());
        let options = parse(&["--seconds", "10", "texts"]).expect("a number and a target");
        assert_eq!(options, Options { seconds: 10, targets: vec!["texts"] });
        for wrong in [&["--seconds"][..], &["--seconds", "soon"], &["nothing"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_inputs_to_begin_with() {
        for target in TARGETS {
            let corpus = process::workspace_root().join("host/fuzz/corpus").join(target);
            assert!(fs::read_dir(corpus).expect("a folder").next().is_some(), "{target}");
        }
    }
}
