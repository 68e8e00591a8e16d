//! Prompts that are never trained on: how well the weights do on them, and the best weights so far.

use crate::checkpoint::{digest_of, hexadecimal};
use crate::disk::{remove, replace, write};
use crate::error::TrainError;
use crate::report::{Kept, Metrics, metric_name};
use crate::save::save_model;
use crate::step::Learner;
use molt_core::settings::{self, TrainSettings};
use molt_generator::Generator;
use molt_rollout::{Driver, EvalReport, Measure, Prompts, RolloutError, Scores, evaluate};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Prompts that are never trained on, and how they are rolled out.
pub struct HeldOut<G: Generator> {
    pub driver: Driver<G>,
    pub prompts: Prompts,
}

impl<G: Generator> HeldOut<G> {
    /// The metrics of an evaluation under the generator's weights. None if `stop` came first.
    ///
    /// # Errors
    /// As those of [`evaluate`].
    pub(crate) fn evaluate(
        &self,
        measure: Measure<'_>,
        (runtime, stop): (&Handle, &CancellationToken),
    ) -> Result<Option<Metrics>, RolloutError> {
        let clock = Instant::now();
        let report = runtime.block_on(async {
            tokio::select! {
                biased;
                () = stop.cancelled() => None,
                report = evaluate(&self.driver, &self.prompts, measure) => Some(report),
            }
        });
        let Some(report) = report.transpose()? else { return Ok(None) };
        let mut metrics = metrics(&report);
        metrics.insert("time/eval".to_owned(), clock.elapsed().as_secs_f64());
        Ok(Some(metrics))
    }
}

/// The metrics of an evaluation.
pub(crate) fn metrics(report: &EvalReport) -> Metrics {
    let mut metrics = Metrics::new();
    put(&mut metrics, "eval", &report.all);
    for (name, scores) in &report.sources {
        put(&mut metrics, &format!("eval/source/{name}"), scores);
    }
    metrics.extend(report.metrics.iter().map(|(name, mean)| (format!("eval/{}", metric_name(name)), *mean)));
    metrics
}

/// What is said of an evaluation, for people.
pub(crate) fn evaluated(step: u64, metrics: &Metrics, is_best: bool) -> String {
    let share = |value: &f64| format!("{:.1}%", 100.0 * value);
    let accuracy = metrics.get("eval/accuracy").map_or_else(|| "not known".to_owned(), share);
    let mut text = format!("held-out accuracy at step {step}: {accuracy}");
    for (name, value) in metrics.iter().filter(|(name, _)| name.as_str() != "eval/pass@1") {
        match name.strip_prefix("eval/") {
            Some(name) if name.starts_with("pass@") || name.starts_with("maj@") => {
                text += &format!(", {name} {}", share(value));
            }
            _ => {}
        }
    }
    text + if is_best { "; the best so far, kept in best/" } else { "" }
}

fn put(metrics: &mut Metrics, prefix: &str, scores: &Scores) {
    let accuracy = scores.pass_at.get(&1).copied();
    let dropped = scores.dropped.values().sum::<usize>() as f64;
    let share = |count: usize| (scores.finished > 0).then(|| count as f64 / scores.finished as f64);
    let pass_at = scores.pass_at.iter().map(|(k, share)| (format!("pass@{k}"), Some(*share)));
    let maj_at = scores.maj_at.iter().map(|(k, share)| (format!("maj@{k}"), Some(*share)));
    let others = [
        ("accuracy", accuracy),
        ("accuracy_of_finished", scores.solved_of_finished),
        ("reward_mean", scores.mean_reward),
        ("length_mean", scores.mean_tokens),
        ("invalid_rate", share(scores.invalid)),
        ("truncated_rate", share(scores.truncated)),
        ("prompts", Some(scores.prompts as f64)),
        ("dropped", Some(dropped)),
    ];
    let others = others.into_iter().map(|(name, value)| (name.to_owned(), value));
    for (name, value) in pass_at.chain(maj_at).chain(others) {
        metrics.extend(value.map(|value| (format!("{prefix}/{name}"), value)));
    }
}

/// `best/` in the run directory: the model that did best in an evaluation, written while the trainer holds the very
/// weights that were evaluated, and `best.json`, which says when that was and how well it did.
#[derive(Debug)]
pub(crate) struct Best<'a> {
    metric: Option<&'a str>,
    /// The digest of what is evaluated, and how.
    evaluation: String,
    dir: PathBuf,
    /// The step and the value of the model that is there.
    reached: Option<(u64, f64)>,
}

/// `best.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    metric: String,
    /// [`evaluation`]: values of two are not to be compared.
    evaluation: String,
    value: f64,
    step: u64,
    version: u64,
}

const RECORD: &str = "best.json";
const PART: &str = ".best.part";
const OLD: &str = ".best.old";

fn record(dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()
}

/// The digest of an evaluation: its prompts and settings, the agent, and the rewards with their components.
///
/// # Errors
/// If the prompts cannot be read.
pub(crate) fn evaluation(settings: &TrainSettings, components: &Value) -> Result<String, TrainError> {
    let TrainSettings { eval, agent, reward, .. } = settings;
    let data: Vec<&Path> = eval.prompts.as_deref().into_iter().collect();
    // Where the files lie is of no matter.
    let eval = settings::Eval { prompts: None, ..eval.clone() };
    let of =
        |component: &&Value| matches!(component["role"].as_str(), Some("agent" | "reward" | "interpreter"));
    let plugins = components["plugins"].as_array().map_or(&[][..], Vec::as_slice);
    let digests: Vec<&Value> = plugins.iter().filter(of).map(|component| &component["digest"]).collect();
    let weights: Vec<f64> = reward.weighted().into_iter().map(|(_, weight)| weight).collect();
    let all = json!([digest_of(&data)?, eval, agent.max_turns, weights, digests]);
    Ok(hexadecimal(&Sha256::digest(all.to_string())))
}

impl<'a> Best<'a> {
    /// By this metric of this evaluation, without its `eval/`; None keeps nothing. A run that goes on in its directory keeps
    /// what is there until it does better, or until the first evaluation if that was of another one.
    pub(crate) fn open(run_dir: &Path, metric: Option<&'a str>, evaluation: String) -> Self {
        let dir = run_dir.join("best");
        if metric.is_some() && !dir.exists() {
            // Killed between two renames: the new one is whole if its record, the last of its files, is.
            let left = [PART, OLD].map(|name| run_dir.join(name));
            if let Some(whole) = left.iter().find(|dir| record(dir).is_some()) {
                let _ = fs::rename(whole, &dir);
            }
        }
        let same =
            |record: &Record| Some(record.metric.as_str()) == metric && record.evaluation == evaluation;
        let reached = record(&dir).filter(same).map(|record| (record.step, record.value));
        Self { metric, evaluation, dir, reached }
    }

    /// Forgets the model of a run that was in this directory before one that begins anew.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(crate) fn forget(run_dir: &Path) -> Result<(), TrainError> {
        ["best", PART, OLD]
            .map(|name| run_dir.join(name))
            .into_iter()
            .try_for_each(|path| remove(&path).map_err(|source| TrainError::Write { path, source }))
    }

    /// What is kept, if anything is.
    pub(crate) fn kept(&self) -> Option<Kept> {
        let ((step, value), metric) = self.reached.zip(self.metric)?;
        Some(Kept { metric: metric.to_owned(), value, step })
    }

    /// Takes in the evaluation of the weights that `learner` holds, and says whether they are kept. Of two that are equally
    /// good the first stays.
    ///
    /// # Errors
    /// If the model cannot be written; the one before stays then.
    pub(crate) fn offer(
        &mut self,
        metrics: &Metrics,
        step: u64,
        learner: &mut Learner,
        model: &settings::Model,
    ) -> Result<bool, TrainError> {
        let Some(metric) = self.metric else { return Ok(false) };
        let Some(&value) = metrics.get(&format!("eval/{metric}")) else { return Ok(false) };
        if self.reached.is_some_and(|(_, reached)| value <= reached) {
            return Ok(false);
        }
        let [part, old] = [PART, OLD].map(|name| self.dir.with_file_name(name));
        let unwritable = |source| TrainError::Write { path: self.dir.clone(), source };
        remove(&part).map_err(unwritable)?;
        save_model(learner, model, &part.join("model"))?;
        let (metric, evaluation) = (metric.to_owned(), self.evaluation.clone());
        let record = Record { metric, evaluation, value, step, version: learner.version().0 };
        let text = serde_json::to_vec_pretty(&record).map_err(|error| unwritable(error.into()))?;
        write(&part.join(RECORD), &text)
            .and_then(|()| replace(&part, &self.dir, &old))
            .map_err(unwritable)?;
        self.reached = Some((step, value));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed set-up should stop the test where it is

    use super::*;

    fn reached(run: &Path) -> Option<f64> {
        Best::open(run, Some("accuracy"), "e1".to_owned()).reached.map(|(_, value)| value)
    }

    fn put(dir: &Path, value: f64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(
            dir.join(RECORD),
            format!(r#"{{"metric":"accuracy","evaluation":"e1","value":{value},"step":1,"version":1}}"#),
        )
        .unwrap();
    }

    #[test]
    fn a_run_that_was_killed_while_it_kept_a_better_model_has_one() {
        let run = tempfile::tempdir().unwrap();
        let [best, part, old] = ["best", PART, OLD].map(|name| run.path().join(name));
        assert_eq!(reached(run.path()), None);
        // While the better one was written: its weights, in part, and no record.
        put(&best, 0.5);
        fs::create_dir(&part).unwrap();
        assert_eq!(reached(run.path()), Some(0.5));
        fs::rename(&best, &old).unwrap();
        assert_eq!(reached(run.path()), Some(0.5), "the old one is back");
        assert!(best.exists() && !old.exists());
        // Between the renames, and after them.
        put(&part, 0.75);
        fs::rename(&best, &old).unwrap();
        assert_eq!(reached(run.path()), Some(0.75));
        assert!(best.exists() && !part.exists());
        assert_eq!(reached(run.path()), Some(0.75));
    }

    #[test]
    fn a_value_is_compared_with_those_of_its_metric_and_evaluation() {
        let run = tempfile::tempdir().unwrap();
        let reached =
            |metric, evaluation: &str| Best::open(run.path(), Some(metric), evaluation.to_owned()).reached;
        fs::create_dir(run.path().join("best")).unwrap();
        let record = r#"{"metric":"accuracy","evaluation":"e1","value":0.5,"step":1,"version":1}"#;
        fs::write(run.path().join("best").join(RECORD), record).unwrap();
        assert_eq!(reached("accuracy", "e1"), Some((1, 0.5)));
        assert_eq!(reached("reward_mean", "e1"), None);
        assert_eq!(reached("accuracy", "e2"), None);
        Best::forget(run.path()).unwrap();
        assert!(!run.path().join("best").exists());
        Best::forget(run.path()).unwrap();
    }

    #[test]
    fn an_evaluation_is_told_with_all_its_shares() {
        let metrics =
            [("accuracy", 0.5), ("pass@1", 0.5), ("pass@4", 0.75), ("maj@4", 0.625), ("reward_mean", 9.0)];
        let metrics = metrics.map(|(name, value)| (format!("eval/{name}"), value)).into();
        let told = "held-out accuracy at step 3: 50.0%, maj@4 62.5%, pass@4 75.0%";
        assert_eq!(evaluated(3, &metrics, false), told);
        assert_eq!(evaluated(3, &metrics, true), format!("{told}; the best so far, kept in best/"));
    }

    #[test]
    fn an_evaluation_is_its_data_and_how_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let [first, same, other] = ["first", "same", "other"].map(|name| dir.path().join(name));
        for (path, text) in [(&first, "a"), (&same, "a"), (&other, "b")] {
            fs::write(path, text).unwrap();
        }
        let plugin = |role: &str, digest: &str| json!({ "role": role, "digest": digest, "path": digest });
        let components = |reward: &str, estimator: &str| json!({ "plugins": [plugin("reward", reward), plugin("estimator", estimator)] });
        let mut settings = TrainSettings::default();
        settings.eval.prompts = Some(first);
        let of = |settings: &TrainSettings, components: &Value| evaluation(settings, components).unwrap();
        let expected = of(&settings, &components("r1", "e1"));
        let with = |change: &dyn Fn(&mut TrainSettings)| {
            let mut changed = settings.clone();
            change(&mut changed);
            of(&changed, &components("r1", "e1"))
        };
        assert_eq!(with(&|settings| settings.eval.prompts = Some(same.clone())), expected);
        assert_eq!(with(&|settings| settings.optim.lr = 0.5), expected);
        assert_eq!(of(&settings, &components("r1", "e2")), expected);
        assert_ne!(of(&settings, &components("r2", "e1")), expected);
        assert_ne!(with(&|settings| settings.eval.prompts = Some(other.clone())), expected);
        assert_ne!(with(&|settings| settings.eval.samples = 3), expected);
        assert_ne!(with(&|settings| settings.eval.temperature = 0.5), expected);
        assert_ne!(with(&|settings| settings.agent.max_turns = 9), expected);
        assert_ne!(with(&|settings| settings.reward.name = vec!["math".into()]), expected);
    }
}
