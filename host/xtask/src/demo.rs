//! `cargo xtask demo`: set up, build, run the real binary, and say what became of it.

use crate::{plugins, process, setup, smollm2, test::clock};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use time::OffsetDateTime;
use time::macros::format_description;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    /// Made from nothing, supervised fine-tuned, then trained by RL.
    Tiny,
    /// The pretrained SmolLM2-135M-Instruct, trained by RL.
    SmolLm2,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    model: Model,
    seed: u64,
    run_dir: Option<PathBuf>,
}

impl Options {
    /// From `--model`, `--seed` and `--run-dir`, each as `--name value` or `--name=value`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options { model: Model::Tiny, seed: 0, run_dir: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            if !["--model", "--seed", "--run-dir"].contains(&name) {
                bail!("demo takes --model, --seed and --run-dir, found {argument:?}");
            }
            let value =
                value.or_else(|| rest.next().cloned()).with_context(|| format!("{name} needs a value"))?;
            match (name, value.as_str()) {
                ("--model", "tiny") => options.model = Model::Tiny,
                ("--model", "smollm2") => options.model = Model::SmolLm2,
                ("--model", _) => bail!("--model is tiny or smollm2, found {value:?}"),
                ("--seed", seed) => {
                    options.seed =
                        seed.parse().with_context(|| format!("--seed is a whole number, found {seed:?}"))?;
                }
                _ => options.run_dir = Some(value.into()),
            }
        }
        Ok(options)
    }
}

pub(crate) fn demo(options: &Options) -> Result<()> {
    let run_dir = run_dir(options)?;
    let cache = setup::setup()?;
    plugins::build(&cache)?;
    process::run(&mut process::cargo(["build", "--package", "molt-cli"]))?;
    let pretrained = match options.model {
        Model::Tiny => None,
        Model::SmolLm2 => Some(smollm2::model(&cache)?),
    };
    let binary = cache.target().join("debug/molt");
    let start = Instant::now();
    let rl = run_dir.join("rl");
    let (model, settings) = match pretrained {
        Some(model) => (model, "examples/smollm2/rl.toml"),
        None => (tuned(&binary, &run_dir, options.seed)?, "examples/demo/rl.toml"),
    };
    println!("── reinforcement learning");
    let mut command =
        molt(&binary, &["train", "--config", settings, "--run.seed", &options.seed.to_string()]);
    process::run(command.arg("--model.path").arg(&model).arg("--run.dir").arg(&rl))?;
    let wall = start.elapsed();

    let path = rl.join("summary.json");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let summary = summarise(&text, wall.as_secs_f64()).with_context(|| format!("in {}", path.display()))?;
    let to = run_dir.join("summary.json");
    fs::write(&to, format!("{summary:#}\n")).with_context(|| format!("cannot write {}", to.display()))?;
    let curves = run_dir.join("curves.svg");
    fs::copy(rl.join("curves.svg"), &curves).with_context(|| format!("cannot write {}", curves.display()))?;
    println!("\n{}", report(&summary, &run_dir, clock(wall)));
    Ok(())
}

/// The binary, to be run with these arguments in the checkout.
pub(crate) fn molt(binary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(arguments).current_dir(process::workspace_root());
    command
}

/// The demonstration's model before reinforcement learning: made from nothing, and shown worked examples.
pub(crate) fn tuned(binary: &Path, dir: &Path, seed: u64) -> Result<PathBuf> {
    let (init, sft, seed) = (dir.join("init"), dir.join("sft"), seed.to_string());
    println!("── a new model");
    process::run(molt(binary, &["init", "examples/demo/model"]).arg(&init).args(["--seed", &seed]))?;
    println!("── supervised fine-tuning");
    let mut command = molt(binary, &["sft", "--config", "examples/demo/sft.toml", "--run.seed", &seed]);
    process::run(command.arg("--model.path").arg(&init).arg("--run.dir").arg(&sft))?;
    Ok(sft.join("model"))
}

/// A new folder under `runs/`, named after what it is for and the time.
pub(crate) fn fresh_dir(what: &str) -> Result<PathBuf> {
    let format = format_description!("[year][month][day]-[hour][minute][second]");
    let now = OffsetDateTime::now_utc().format(&format).context("the time cannot be written")?;
    empty_dir(&process::workspace_root().join("runs").join(format!("{what}-{now}")))
}

fn run_dir(options: &Options) -> Result<PathBuf> {
    options.run_dir.as_deref().map_or_else(|| fresh_dir("demo"), empty_dir)
}

/// An absolute path that does not exist yet or is an empty folder.
fn empty_dir(chosen: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(chosen).with_context(|| format!("{} is no path", chosen.display()))?;
    let empty = fs::read_dir(&path).map(|mut entries| entries.next().is_none());
    if path.exists() && !empty.unwrap_or(false) {
        bail!("{} exists and is not an empty folder; choose another --run-dir", path.display());
    }
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// The figures of the demo, from the summary of its RL run.
fn summarise(rl: &str, wall_s: f64) -> Result<Value> {
    let rl: Map<String, Value> = serde_json::from_str(rl).context("not a JSON object")?;
    let mut summary = Map::new();
    for key in ["held_out_accuracy_before", "held_out_accuracy_after", "steps", "logprob_gap_max", "dropped"]
    {
        let value = rl.get(key).with_context(|| format!("no {key}"))?;
        summary.insert(key.into(), value.clone());
    }
    summary.insert("wall_s".into(), json!((wall_s * 10.0).round() / 10.0));
    Ok(summary.into())
}

fn report(summary: &Value, run_dir: &Path, wall: String) -> String {
    let percent =
        |key: &str| summary[key].as_f64().map_or("unknown".into(), |x| format!("{:.1}%", 100.0 * x));
    format!(
        "held-out accuracy {} -> {} in {} steps, {wall}\ncurves   {}\nsummary  {}\nmodel    {}",
        percent("held_out_accuracy_before"),
        percent("held_out_accuracy_after"),
        summary["steps"],
        run_dir.join("curves.svg").display(),
        run_dir.join("summary.json").display(),
        run_dir.join("rl/model").display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options> {
        Options::parse(&arguments.iter().map(|a| a.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_in_both_forms() {
        let expected = Options { model: Model::SmolLm2, seed: 7, run_dir: Some("out".into()) };
        assert_eq!(parse(&["--model", "smollm2", "--seed=7", "--run-dir", "out"]).expect("valid"), expected);
        assert_eq!(parse(&[]).expect("valid"), Options { model: Model::Tiny, seed: 0, run_dir: None });
        for wrong in [&["--sed", "1"][..], &["--seed"], &["--seed", "-1"], &["--model", "large"], &["tiny"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_folder_with_contents_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let at = |path: &Path| run_dir(&Options { model: Model::Tiny, seed: 0, run_dir: Some(path.into()) });
        assert_eq!(at(folder.path()).expect("empty"), folder.path());
        assert!(at(&folder.path().join("new/run")).expect("new").is_dir());
        assert!(at(folder.path()).is_err(), "it now holds `new`");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("writable");
        assert!(at(&file).is_err());
    }

    #[test]
    fn the_summary_takes_the_figures_of_the_run_and_misses_none() {
        let rl = r#"{"held_out_accuracy_before":0.4,"held_out_accuracy_after":0.9,"steps":30,
                     "logprob_gap_max":1e-6,"dropped":{"trap":2},"tokens":5}"#;
        let summary = summarise(rl, 61.26).expect("complete");
        assert_eq!(summary["wall_s"], 61.3);
        assert_eq!(summary["dropped"]["trap"], 2);
        assert!(summary.get("tokens").is_none());
        assert!(
            report(&summary, Path::new("/r"), "1m01s".into())
                .starts_with("held-out accuracy 40.0% -> 90.0% in 30 steps")
        );
        let error = summarise(r#"{"held_out_accuracy_before":0.4}"#, 1.0).expect_err("incomplete");
        assert!(error.to_string().contains("held_out_accuracy_after"), "{error}");
    }
}
