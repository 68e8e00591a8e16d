//! `cargo xtask bench learning`: whether every estimator learns the demonstration's task, with several seeds.

use crate::{demo, plugins, process, setup};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const SEEDS: u64 = 3;
/// Few enough for all runs to be done in an hour or so, many enough to tell learning from noise.
const STEPS: u64 = 100;
const EVERY: u64 = 25;

/// All estimators, and one of them asynchronously.
const RUNS: [&str; 11] = [
    "dr-grpo",
    TEACHER,
    AHEAD,
    "maxrl",
    "reinforce",
    "reinforce-baseline",
    "rloo",
    "rloo-length",
    "turn-credit",
    "gae",
    DISTILL,
];

/// [`TEACHER`] with rollouts up to two batches ahead of the trainer, and a correction for that.
const AHEAD: &str = "grpo-queue-2";
/// The one that learns from what [`TEACHER`] made of the model with the same seed.
const DISTILL: &str = "on-policy-distill";
const TEACHER: &str = "grpo";

/// Held-out accuracy by step.
type Curve = BTreeMap<u64, f64>;

/// Runs the estimators that are named, or all, prints a table of their curves and writes it beside the runs.
pub(crate) fn bench(names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| !RUNS.contains(&name.as_str())) {
        let known = RUNS.join(", ");
        bail!("`cargo xtask bench learning` has no {unknown:?}; it has {known}");
    }
    let cache = setup::setup()?;
    plugins::build(&cache)?;
    process::run(&mut process::cargo(["build", "--package", "molt-cli"]))?;
    let molt = cache.target().join("debug/molt");
    let dir = demo::fresh_dir("learning")?;
    let mut curves: Vec<(&str, Vec<Curve>)> = Vec::new();
    for seed in 0..SEEDS {
        let at = dir.join(format!("seed-{seed}"));
        let model = demo::tuned(&molt, &at, seed)?;
        for estimator in chosen(names) {
            println!("── {estimator}, seed {seed}");
            let run = at.join(estimator);
            let mut command = demo::molt(&molt, &["train", "--config", "examples/demo/rl.toml"]);
            command.args(["--train.max_steps", &STEPS.to_string(), "--train.eval_every", &EVERY.to_string()]);
            let name = if estimator == AHEAD { TEACHER } else { estimator };
            command.args(["--run.seed", &seed.to_string(), "--algo.estimator", name]);
            match estimator {
                AHEAD => {
                    command.args(["--train.sync", "false", "--train.async_queue_size", "2"]);
                    command.args(["--algo.importance", "old", "--algo.correction.level", "token"]);
                    command.args(["--algo.correction.mode", "trunc"]);
                }
                // The defaults are for large models, as are those of the policy, which the demonstration raises.
                "gae" => drop(command.args(["--critic.optim.lr", "1e-3", "--critic.warmup_steps", "5"])),
                DISTILL => drop(command.arg("--teacher.model").arg(at.join(TEACHER).join("model"))),
                _ => {}
            }
            process::run(command.arg("--model.path").arg(&model).arg("--run.dir").arg(&run))?;
            let curve = curve(&run.join("metrics.jsonl"))?;
            match curves.iter_mut().find(|(name, _)| *name == estimator) {
                Some((_, of_seeds)) => of_seeds.push(curve),
                None => curves.push((estimator, vec![curve])),
            }
        }
    }
    let table = table(&curves);
    let to = dir.join("learning.md");
    fs::write(&to, &table).with_context(|| format!("cannot write {}", to.display()))?;
    println!("\n{table}\n{}", to.display());
    let stuck: Vec<&str> = curves.iter().filter(|(_, c)| !c.iter().all(improves)).map(|(n, _)| *n).collect();
    if !stuck.is_empty() {
        bail!("with some seed the held-out accuracy did not rise: {}", stuck.join(", "));
    }
    Ok(())
}

/// The estimators that are named, or all, in order; before one that learns from a teacher, the teacher.
fn chosen(names: &[String]) -> impl Iterator<Item = &'static str> {
    let named = |estimator: &str| names.is_empty() || names.iter().any(|name| name == estimator);
    RUNS.into_iter().filter(move |&e| named(e) || e == TEACHER && named(DISTILL))
}

fn improves(curve: &Curve) -> bool {
    curve.values().last() > curve.values().next()
}

/// The held-out accuracies that a run wrote down.
fn curve(metrics: &Path) -> Result<Curve> {
    let text = fs::read_to_string(metrics).with_context(|| format!("cannot read {}", metrics.display()))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let points =
        lines.iter().filter_map(|line| Some((line["step"].as_u64()?, line["eval/accuracy"].as_f64()?)));
    Ok(points.collect())
}

/// In per cent: the mean over the seeds at every step with an evaluation, and each seed's last.
fn table(curves: &[(&str, Vec<Curve>)]) -> String {
    let steps: Vec<u64> = curves.iter().flat_map(|(_, c)| c).flat_map(|c| c.keys().copied()).collect();
    let steps: Vec<u64> = std::collections::BTreeSet::from_iter(steps).into_iter().collect();
    let mut text = "| held-out accuracy, % |".to_owned();
    for step in &steps {
        let _ = write!(text, " step {step} |");
    }
    text.push_str(" each seed at the end |\n|---|");
    text.push_str(&"---|".repeat(steps.len() + 1));
    for (name, of_seeds) in curves {
        let _ = write!(text, "\n| {name} |");
        for step in &steps {
            let values: Vec<f64> = of_seeds.iter().filter_map(|curve| curve.get(step).copied()).collect();
            let mean = 100.0 * values.iter().sum::<f64>() / values.len().max(1) as f64;
            let _ = write!(text, " {mean:.1} |");
        }
        let ends = of_seeds.iter().filter_map(|curve| curve.values().last());
        let ends: Vec<String> = ends.map(|end| format!("{:.1}", 100.0 * end)).collect();
        let _ = write!(text, " {} |", ends.join(", "));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_means_over_seeds() {
        let curves = [("grpo", vec![Curve::from([(0, 0.2), (25, 0.5)]), Curve::from([(0, 0.4), (25, 0.7)])])];
        let want = "| held-out accuracy, % | step 0 | step 25 | each seed at the end |\n|---|---|---|---|\n\
                    | grpo | 30.0 | 60.0 | 50.0, 70.0 |\n";
        assert_eq!(table(&curves), want);
        assert!(curves[0].1.iter().all(improves));
        assert!(!improves(&Curve::from([(0, 0.5), (25, 0.5)])));
    }

    #[test]
    fn a_teacher_comes_before_what_learns_from_it() {
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            chosen(&names).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), RUNS);
        assert_eq!(chosen(&["gae", "rloo"]), ["rloo", "gae"]);
        assert_eq!(chosen(&[DISTILL]), [TEACHER, DISTILL]);
        assert_eq!(chosen(&[AHEAD]), [AHEAD]);
    }

    #[test]
    fn a_curve_is_read_from_the_metrics() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "{\"step\":0,\"eval/accuracy\":0.25}\n{\"step\":1,\"train/loss\":0.1}\n";
        fs::write(file.path(), text).expect("writable");
        assert_eq!(curve(file.path()).expect("metrics"), Curve::from([(0, 0.25)]));
    }
}
