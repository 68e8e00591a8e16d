//! Benchmarks, in the release profile; they print their ratios.

use crate::{learning, peer, plugins, process, setup};
use anyhow::{Result, bail};

/// `bench sandbox [PART…]`, on the components that ship and on the example in every language, `bench train [PART…]`,
/// beside PyTorch, and `bench learning [ESTIMATOR…]`.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    match arguments.split_first().map(|(what, parts)| (what.as_str(), parts)) {
        Some(("sandbox", parts)) => sandbox(parts),
        Some(("train", parts)) => train(parts),
        Some(("learning", estimators)) => learning::bench(estimators),
        _ => bail!("`cargo xtask bench` takes what to measure: sandbox, train or learning"),
    }
}

fn sandbox(parts: &[String]) -> Result<()> {
    plugins::build(&setup::setup()?)?;
    if parts.is_empty() || parts.iter().any(|part| part == "first-use") {
        process::run(&mut process::cargo(["test", "--package", "molt-author", "--test", "languages"]))?;
    }
    let mut command = process::cargo(["bench", "--package", "molt-sandbox", "--bench", "sandbox", "--"]);
    process::run(command.args(parts))
}

fn train(parts: &[String]) -> Result<()> {
    let cache = setup::setup()?;
    let mut command = process::cargo(["bench", "--package", "molt-trainer", "--bench", "train", "--"]);
    if parts.is_empty() || parts.iter().any(|part| part == "speed") {
        command.env("PYTHONPATH", peer::pytorch(&cache)?);
    }
    process::run(command.args(parts))
}
