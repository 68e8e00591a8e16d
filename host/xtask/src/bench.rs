//! Benchmarks, in the release profile; they print their ratios.

use crate::{plugins, process, setup};
use anyhow::{Result, bail};

/// `bench sandbox [PART…]`, on the components that ship and on the example in every language.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    let Some(("sandbox", parts)) = arguments.split_first().map(|(what, parts)| (what.as_str(), parts)) else {
        bail!("`cargo xtask bench` takes what to measure: sandbox");
    };
    plugins::build(&setup::setup()?)?;
    if parts.is_empty() || parts.iter().any(|part| part == "first-use") {
        process::run(&mut process::cargo(["test", "--package", "molt-author", "--test", "languages"]))?;
    }
    let mut command = process::cargo(["bench", "--package", "molt-sandbox", "--bench", "sandbox", "--"]);
    process::run(command.args(parts))
}
