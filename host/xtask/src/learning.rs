//! `cargo xtask bench learning`: whether every estimator learns the demonstration's task, with several seeds.

use crate::{demo, plugins, process, setup};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const SEEDS: u64 = 3;
/// Few enough for all estimators to be done in an hour or so, many enough to tell learning from noise.
const SHORT: Steps = Steps { all: 100, every: 25, lr: "1e-3" };
/// As long as the demonstration, at a fifth of its rate: that is about the most which gradients of this task can bear, and
/// those of rollouts that are two steps old bear a fifth of that (a delay of τ steps costs a factor of 2τ + 1).
const LONG: Steps = Steps { all: 500, every: 100, lr: "2e-4" };

#[derive(Clone, Copy)]
struct Steps {
    all: u64,
    every: u64,
    lr: &'static str,
}

/// All estimators.
const RUNS: [&str; 10] = [
    "dr-grpo",
    TEACHER,
    "maxrl",
    "reinforce",
    "reinforce-baseline",
    "rloo",
    "rloo-length",
    "turn-credit",
    "gae",
    DISTILL,
];

/// The one that learns from what [`TEACHER`] made of the model with the same seed.
const DISTILL: &str = "on-policy-distill";
const TEACHER: &str = "grpo";
/// [`TEACHER`] with rollouts up to two batches ahead of the trainer, and a correction for that; compared with the same
/// without, over [`LONG`].
const AHEAD: &str = "grpo-queue-2";

/// Held-out accuracy by step.
type Curve = BTreeMap<u64, f64>;

/// Of each run the curves of all seeds.
type Curves = Vec<(&'static str, Vec<Curve>)>;

/// Runs the estimators that are named, or all, prints tables of their curves and writes them beside the runs.
pub(crate) fn bench(names: &[String]) -> Result<()> {
    let all = || RUNS.into_iter().chain([AHEAD]);
    if let Some(unknown) = names.iter().find(|name| !all().any(|known| known == name.as_str())) {
        let known = all().collect::<Vec<_>>().join(", ");
        bail!("`cargo xtask bench learning` has no {unknown:?}; it has {known}");
    }
    let cache = setup::setup()?;
    plugins::build(&cache)?;
    process::run(&mut process::cargo(["build", "--package", "molt-cli"]))?;
    let molt = cache.target().join("debug/molt");
    let dir = demo::fresh_dir("learning")?;
    let (mut short, mut long) = (Curves::new(), Curves::new());
    for seed in 0..SEEDS {
        let at = dir.join(format!("seed-{seed}"));
        let model = demo::tuned(&molt, &at, seed)?;
        for name in chosen(names) {
            add(&mut short, name, train(&molt, (&model, seed), name, SHORT, &at)?);
        }
        if names.is_empty() || names.iter().any(|name| name == AHEAD) {
            for name in [TEACHER, AHEAD] {
                add(&mut long, name, train(&molt, (&model, seed), name, LONG, &at.join("long"))?);
            }
        }
    }
    let tables: Vec<String> =
        [&short, &long].into_iter().filter(|c| !c.is_empty()).map(|c| table(c)).collect();
    let tables = tables.join("\n");
    let to = dir.join("learning.md");
    fs::write(&to, &tables).with_context(|| format!("cannot write {}", to.display()))?;
    println!("\n{tables}\n{}", to.display());

    let lists = fs::read_to_string(process::workspace_root().join("examples/demo/held-out.jsonl"))
        .context("the held-out lists cannot be read")?;
    let lists = lists.lines().count() as f64;
    let rises = |curve: &Curve| improves(curve, lists);
    let stuck: Vec<&str> =
        short.iter().filter(|(_, c)| !c.iter().all(rises)).map(|(name, _)| *name).collect();
    if !stuck.is_empty() {
        bail!("with some seed the held-out accuracy did not rise beyond noise: {}", stuck.join(", "));
    }
    if let [(_, present), (_, ahead)] = &long[..] {
        let (less, noise) = shortfall(present, ahead, lists);
        println!("{AHEAD} ends {:.1} points below {TEACHER}; noise is {:.1}", 100.0 * less, 100.0 * noise);
        if less > noise {
            bail!("the asynchronous run does not reach the synchronous one");
        }
    }
    Ok(())
}

fn add(curves: &mut Curves, name: &'static str, curve: Curve) {
    match curves.iter_mut().find(|(known, _)| *known == name) {
        Some((_, of_seeds)) => of_seeds.push(curve),
        None => curves.push((name, vec![curve])),
    }
}

/// One run, in a folder of `at`.
fn train(molt: &Path, (model, seed): (&Path, u64), name: &str, steps: Steps, at: &Path) -> Result<Curve> {
    println!("── {name}, seed {seed}, {} steps", steps.all);
    let run = at.join(name);
    let mut command = demo::molt(molt, &["train", "--config", "examples/demo/rl.toml"]);
    command.args([
        "--train.max_steps",
        &steps.all.to_string(),
        "--train.eval_every",
        &steps.every.to_string(),
    ]);
    let estimator = if name == AHEAD { TEACHER } else { name };
    command.args(["--run.seed", &seed.to_string(), "--algo.estimator", estimator, "--optim.lr", steps.lr]);
    match name {
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
    process::run(command.arg("--model.path").arg(model).arg("--run.dir").arg(&run))?;
    curve(&run.join("metrics.jsonl"))
}

/// The estimators that are named, or all, in order; before one that learns from a teacher, the teacher.
fn chosen(names: &[String]) -> impl Iterator<Item = &'static str> {
    let named = |estimator: &str| names.is_empty() || names.iter().any(|name| name == estimator);
    RUNS.into_iter().filter(move |&e| named(e) || e == TEACHER && named(DISTILL))
}

/// Whether a curve ends above where it begins by more than two standard errors of the difference of two shares of so many
/// `lists`.
fn improves(curve: &Curve, lists: f64) -> bool {
    let (Some(first), Some(last)) = (curve.values().next(), curve.values().last()) else { return false };
    let variance = |share: &f64| share * (1.0 - share) / lists;
    last - first > 2.0 * (variance(first) + variance(last)).sqrt()
}

/// By how much the mean of the ends of `ahead` is below that of `present`, and two standard errors of that: what seeds
/// differ by, and what shares of so many `lists` do.
fn shortfall(present: &[Curve], ahead: &[Curve], lists: f64) -> (f64, f64) {
    let mean_and_variance = |curves: &[Curve]| {
        let ends: Vec<f64> = curves.iter().filter_map(|curve| curve.values().last().copied()).collect();
        let count = ends.len() as f64;
        let mean = ends.iter().sum::<f64>() / count;
        let between = ends.iter().map(|end| (end - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        (mean, between.max(mean * (1.0 - mean) / lists) / count)
    };
    let ((present, a), (ahead, b)) = (mean_and_variance(present), mean_and_variance(ahead));
    (present - ahead, 2.0 * (a + b).sqrt())
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
    }

    #[test]
    fn learning_is_a_rise_beyond_noise() {
        let rises = |from, to| improves(&Curve::from([(0, from), (25, to)]), 100.0);
        assert!(!rises(0.5, 0.5) && !rises(0.5, 0.6), "the standard error is 0.07");
        assert!(rises(0.5, 0.65) && !rises(0.65, 0.5));
        assert!(!improves(&Curve::new(), 100.0));
    }

    #[test]
    fn a_shortfall_is_told_from_noise() {
        let ends = |ends: [f64; 2]| ends.map(|end| Curve::from([(0, 0.3), (500, end)]));
        // Seeds differ by a standard deviation of 0.1414: sqrt(2 * 0.02 / 2) is 0.1414.
        let (less, noise) = shortfall(&ends([0.9, 0.7]), &ends([0.8, 0.6]), 1e9);
        assert!(
            (less - 0.1).abs() < 1e-12 && (noise - 2.0 * 0.02_f64.sqrt()).abs() < 1e-12,
            "{less} {noise}"
        );
        // Seeds that happen to agree still are shares of 100 lists.
        let (less, noise) = shortfall(&ends([0.9, 0.9]), &ends([0.5, 0.5]), 100.0);
        assert!(
            (less - 0.4).abs() < 1e-12 && (noise - 2.0 * (0.0009_f64 / 2.0 + 0.00125).sqrt()).abs() < 1e-12
        );
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
        assert_eq!(chosen(&[AHEAD]), [""; 0], "it has runs of its own");
    }

    #[test]
    fn a_curve_is_read_from_the_metrics() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "{\"step\":0,\"eval/accuracy\":0.25}\n{\"step\":1,\"train/loss\":0.1}\n";
        fs::write(file.path(), text).expect("writable");
        assert_eq!(curve(file.path()).expect("metrics"), Curve::from([(0, 0.25)]));
    }
}
