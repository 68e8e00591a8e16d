//! What is trained of a batch, how often, and what is said of it: with a generator that follows a rule.

use crate::experts::moe_model;
use crate::parts::*;
use crate::scripted::far;
use molt_core::chat::Task;
use molt_core::ids::WeightVersion;
use molt_core::sampling::Finish;
use molt_core::settings::{Correction, CorrectionLevel, FilterBy, Importance, KlIn, TrainSettings};
use molt_core::trajectory::Sampled;
use molt_generator::{Generation, Generator, GeneratorError, Request, WeightUpdate};
use molt_model::Decoder;
use molt_observe::{Row, read_metrics};
use molt_rollout::Prompts;
use molt_trainer::TrainError;
use molt_trainer::checkpoint::{Checkpoint, From};
use molt_trainer::report::{Kept, Summary};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tch::Tensor;
use tokio_util::sync::CancellationToken;

/// Whether a rollout of this seed is right under weights of this version, and whether it ends by itself.
type Rule = fn(version: u64, seed: u64) -> (bool, bool);

/// As a [`Rule`], with what the rollout says.
type Says = dyn Fn(u64, u64) -> (&'static str, bool) + Send + Sync;

/// Says 7 or 3, or else, by a rule.
struct Ruled {
    says: Box<Says>,
    version: AtomicU64,
    published: Mutex<Vec<u64>>,
    /// The weights of every version.
    weights: Mutex<BTreeMap<u64, Vec<(String, Tensor)>>>,
}

impl Ruled {
    fn new(rule: Rule) -> Arc<Self> {
        Self::saying(move |version, seed| {
            let (right, ends) = rule(version, seed);
            (if right { "7" } else { "3" }, ends)
        })
    }

    fn saying(says: impl Fn(u64, u64) -> (&'static str, bool) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            says: Box::new(says),
            version: AtomicU64::new(0),
            published: Mutex::default(),
            weights: Mutex::default(),
        })
    }
}

impl Generator for Ruled {
    async fn generate(&self, request: Request) -> Result<Generation, GeneratorError> {
        let version = self.version.load(Ordering::SeqCst);
        let (text, ends) = (self.says)(version, request.seed);
        let sample = |token, place: u64| {
            let logprob = -1.0 - ((request.seed >> place) % 1000) as f32 / 250.0;
            Sampled { token, logprob, version: WeightVersion(version) }
        };
        // In the test vocabulary a printable character has the id of its byte less 33.
        let mut sampled: Vec<_> = text.bytes().map(|byte| sample(u32::from(byte) - 33, 16)).collect();
        if ends {
            sampled.push(sample(263, 32));
        }
        Ok(Generation { sampled, finish: if ends { Finish::Stop } else { Finish::Length }, routing: None })
    }

    async fn load_weights(&self, update: WeightUpdate) -> Result<(), GeneratorError> {
        self.version.store(update.version.0, Ordering::SeqCst);
        self.published.lock().unwrap().push(update.version.0);
        self.weights.lock().unwrap().insert(update.version.0, update.parameters);
        Ok(())
    }
}

fn by_seed(_: u64, seed: u64) -> (bool, bool) {
    (seed.is_multiple_of(3), true)
}

fn sync(model: &Path) -> TrainSettings {
    let mut settings = far(model);
    settings.train.sync = true;
    settings
}

fn go(
    settings: TrainSettings,
    generator: &Arc<Ruled>,
    held_out: Option<Prompts>,
    dir: &Path,
) -> (Result<Summary, TrainError>, PathBuf, Vec<Row>) {
    let prompts = (prompts(40, "7"), held_out);
    let (result, run) = run(settings, Arc::clone(generator), prompts, dir, &CancellationToken::new());
    let rows = read_metrics(&run.join("metrics.jsonl")).unwrap();
    (result, run, rows)
}

#[test]
fn a_batch_is_trained_several_times_over() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut all = Vec::new();
    for (epochs, steps) in [(1, 2), (2, 2), (2, 1)] {
        let mut settings = moving(sync(&model));
        settings.train.max_steps = Some(2);
        settings.train.epochs_per_batch = epochs;
        settings.train.steps_per_batch = steps;
        let generator = Ruled::new(by_seed);
        let (result, run, rows) =
            go(settings, &generator, None, &dir.path().join(format!("{epochs}-{steps}")));
        let updates = (epochs * steps) as u64;
        assert_eq!(*generator.published.lock().unwrap(), [updates, 2 * updates]);
        assert_eq!(result.unwrap().tokens, 2 * epochs * 4 * 8 * 2);
        for row in rows {
            let of = |name: &str| row.values[name];
            assert_eq!(of("train/tokens"), (epochs * 4 * 8 * 2) as f64);
            // Only the first optimiser step trains the weights that sampled.
            assert_eq!(of("train/on_policy_tokens"), (4 * 8 * 2 / steps) as f64);
            // A population of rollouts is not larger for being trained twice.
            assert_eq!((of("rollout/length_mean"), of("staleness/0")), (2.0, 1.0));
        }
        all.push(weights(&run));
    }
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
}

/// A reward of -1 for every letter: -4 in the first batch, which comes again, and -1 in the second but for what cannot be
/// scored, which is trained with the lowest of all of it, and is said to be.
#[test]
fn what_cannot_be_scored_is_told_with_the_reward_that_it_is_trained_with() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = moving(sync(&model(dir.path())));
    settings.reward.name = vec!["contract-0-1-reward".into()];
    settings.reward.weight = vec![-1.0];
    settings.rollout.max_new_tokens = 8;
    settings.replay.groups_per_batch = 2;
    settings.train.max_steps = Some(2);
    let generator = Ruled::saying(|version, seed| match (version, seed.is_multiple_of(3)) {
        (0, _) => ("four", true),
        (_, true) => ("invalid", true),
        (_, false) => ("7", true),
    });
    let (result, _, rows) = go(settings, &generator, None, &dir.path().join("run"));
    result.unwrap();
    let of = |step: usize, name: &str| rows[step].values[name];
    assert_eq!((of(0, "rollout/reward_mean"), of(0, "rollout/invalid_rate")), (-4.0, 0.0));
    let invalid = of(1, "rollout/invalid_rate");
    assert!(invalid > 0.0 && invalid < 1.0);
    let mean = of(1, "rollout/reward_mean");
    assert!((mean + 1.0 + 3.0 * invalid).abs() < 1e-12, "{mean}");
}

/// Two optimiser steps of four groups each: the first does not have all of the new ones.
#[test]
fn replayed_groups_are_mixed_with_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = sync(&model(dir.path()));
    settings.train.steps_per_batch = 2;
    settings.replay.groups_per_batch = 4;
    settings.train.mask_truncated = true;
    settings.train.max_steps = Some(6);
    let (result, _, rows) = go(settings, &Ruled::new(by_seed), None, &dir.path().join("run"));
    result.unwrap();
    // A group has 8 rollouts of 2 tokens, and only those of the weights that it trains count.
    let new: Vec<f64> = rows.iter().map(|row| row.values["train/on_policy_tokens"] / 16.0).collect();
    assert_eq!(new[0], 2.0, "the first batch has nothing to replay: {new:?}");
    assert!(new[1..].iter().any(|&groups| groups > 0.0 && groups < 4.0), "{new:?}");
    assert!(rows[1..].iter().all(|row| row.values["train/tokens"] == 128.0));
}

/// All are right once two steps were made, so that a loss of no advantages is asked for, which this one has no answer to.
#[test]
fn a_loss_that_fails_stops_the_run_and_what_was_learnt_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let rule: Rule = |version, seed| (version == 2 || seed.is_multiple_of(3), true);
    let mut runs = Vec::new();
    for (name, steps) in [("two", 2), ("three", 3)] {
        let mut settings = sync(&model);
        settings.algo.loss = "old-clip".into();
        settings.train.max_steps = Some(steps);
        let (result, run, _) = go(settings, &Ruled::new(rule), None, &dir.path().join(name));
        match result {
            Ok(summary) => assert_eq!((summary.steps, steps), (2, 2)),
            Err(error) => {
                assert!(matches!(&error, TrainError::Loss { step: 3, .. }), "{error}");
                assert_eq!(json(&run.join("summary.json"))["steps"], 2);
            }
        }
        runs.push(run);
    }
    assert!(weights(&runs[1]) == weights(&runs[0]), "the weights after two steps");
    assert!(weights(&runs[1]) != std::fs::read(model.join("model.safetensors")).unwrap());
}

#[test]
fn truncated_rollouts_are_masked_and_a_batch_of_them_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = sync(&model);
    settings.train.mask_truncated = true;
    settings.train.max_steps = Some(2);
    let notes = |run: &Path| -> Vec<String> {
        let log = std::fs::read_to_string(run.join("run.log")).unwrap_or_default();
        log.lines().filter(|line| line.contains("train.mask_truncated")).map(str::to_owned).collect()
    };
    let generator = Ruled::new(|_, seed| (seed.is_multiple_of(3), false));
    let (result, run, rows) = go(settings.clone(), &generator, None, &dir.path().join("all"));
    assert_eq!(result.unwrap().tokens, 0);
    let told = notes(&run);
    assert!(told.len() == 2 && told[1].contains("step 2: every rollout is truncated"), "{told:?}");
    assert!(weights(&run) == std::fs::read(model.join("model.safetensors")).unwrap());
    for row in &rows {
        assert_eq!((row.values["rollout/masked"], row.values["rollout/truncated_rate"]), (32.0, 1.0));
        assert_eq!((row.values["train/tokens"], row.values["rollout/length_mean"]), (0.0, 1.0));
        assert!(row.values.values().all(|value| value.is_finite()));
    }
    // A group's baseline still has them: right ones are truncated, so the rest learns that it did worse. (The script's
    // log-probabilities are far from the model's, so a clipped ratio would have no gradient for that.)
    settings.algo.importance = Importance::Old;
    let generator = Ruled::new(|_, seed| (seed.is_multiple_of(3), !seed.is_multiple_of(3)));
    let (result, run, rows) = go(settings, &generator, None, &dir.path().join("some"));
    result.unwrap();
    assert_eq!(notes(&run), [""; 0]);
    assert!(weights(&run) != std::fs::read(model.join("model.safetensors")).unwrap());
    for row in &rows {
        let masked = row.values["rollout/masked"];
        assert!(masked > 0.0 && masked < 32.0);
        assert_eq!(row.values["train/tokens"], 2.0 * (32.0 - masked));
    }
}

/// Accuracy is highest after the second of four steps: what is kept is what was evaluated then.
#[test]
fn the_best_model_is_the_one_that_was_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let rule: Rule = |version, seed| (version == 2 || seed.is_multiple_of(3), true);
    let mut runs = Vec::new();
    for (name, steps) in [("four", 4), ("two", 2)] {
        let mut settings = moving(sync(&model));
        settings.train.max_steps = Some(steps);
        settings.train.eval_every = Some(1);
        settings.train.keep_best = Some("accuracy".into());
        let (result, run, rows) =
            go(settings, &Ruled::new(rule), Some(prompts(8, "7")), &dir.path().join(name));
        let kept = Kept { metric: "accuracy".into(), value: 1.0, step: 2 };
        assert_eq!(result.unwrap().best, Some(kept));
        let accuracies: Vec<f64> =
            rows.iter().filter_map(|row| row.values.get("eval/accuracy").copied()).collect();
        assert_eq!(accuracies.len() as u64, steps + 1);
        assert_eq!(accuracies[2], 1.0);
        assert!(accuracies.iter().filter(|accuracy| **accuracy == 1.0).count() == 1);
        let best = json(&run.join("best/best.json"));
        assert_eq!((&best["step"], &best["version"], &best["value"]), (&2.into(), &2.into(), &1.0.into()));
        assert!(run.join("best/model/tokenizer.json").is_file());
        runs.push(run);
    }
    let best = |run: &Path| std::fs::read(run.join("best/model/model.safetensors")).unwrap();
    assert!(best(&runs[0]) == weights(&runs[1]), "the weights after two steps");
    assert!(best(&runs[0]) != weights(&runs[0]), "and not those of the end");
    assert!(!runs[0].join(".best.old").exists() && !runs[0].join(".best.part").exists());
}

/// As above while generation runs ahead: whatever is trained meanwhile, it is the weights of the generator that were
/// evaluated.
#[test]
fn the_best_model_of_a_run_with_a_queue_is_the_one_that_was_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = moving(far(&model(dir.path())));
    settings.train.async_queue_size = 1;
    settings.train.max_steps = Some(5);
    settings.train.eval_every = Some(1);
    settings.train.keep_best = Some("accuracy".into());
    let generator = Ruled::new(|version, seed| (version == 3 || seed.is_multiple_of(3), true));
    let (result, run, rows) = go(settings, &generator, Some(prompts(8, "7")), &dir.path().join("run"));
    result.unwrap();
    let accuracies: Vec<f64> =
        rows.iter().filter_map(|row| row.values.get("eval/accuracy").copied()).collect();
    assert!(accuracies.len() == 6 && accuracies.iter().filter(|accuracy| **accuracy == 1.0).count() == 1);
    let best = json(&run.join("best/best.json"));
    assert_eq!((&best["step"], &best["version"], &best["value"]), (&3.into(), &3.into(), &1.0.into()));
    let kept: BTreeMap<String, Tensor> =
        Decoder::load(&run.join("best/model")).unwrap().parameters().into_iter().collect();
    let published = generator.weights.lock().unwrap();
    let is_kept = |version: u64| published[&version].iter().all(|(name, weight)| kept[name] == *weight);
    assert_eq!((1..=5).filter(|&version| is_kept(version)).collect::<Vec<_>>(), [3]);
}

#[test]
fn filtered_groups_are_counted_and_what_is_trained_has_a_spread() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = sync(&model(dir.path()));
    settings.rollout.filter.by = FilterBy::PassRate;
    settings.rollout.samples_per_prompt = 3;
    settings.train.max_steps = Some(2);
    let (result, _, rows) = go(settings.clone(), &Ruled::new(by_seed), None, &dir.path().join("run"));
    let dropped = result.unwrap().dropped;
    assert!(dropped["filtered"] > 0 && dropped.len() == 1, "{dropped:?}");
    for row in rows {
        let of = |name: &str| row.values[name];
        assert_eq!((of("rollout/groups"), of("rollout/zero_advantage_groups")), (4.0, 0.0));
        assert_eq!((of("rollout/failed"), of("rollout/finished")), (0.0, 12.0));
        let silent = of("before_filter/all_solved_rate") + of("before_filter/none_solved_rate");
        assert!((1.0 - of("before_filter/kept_rate") - silent).abs() < 1e-12);
        assert_eq!(of("before_filter/groups") - 4.0, of("rollout/dropped") / 3.0);
    }
    // Nothing is between: the run ends with a sentence, and with the model as it is.
    settings.rollout.filter.max_refills = Some(5);
    let (result, run, _) = go(settings, &Ruled::new(|_, _| (true, true)), None, &dir.path().join("end"));
    assert!(matches!(result, Err(TrainError::Rollout(_))), "{result:?}");
    let reason = json(&run.join("status.json"))["reason"].to_string();
    assert!(reason.contains("rollout.filter.max_refills allows 5"), "{reason}");
    assert!(run.join("model/model.safetensors").is_file());
}

/// The last two of ten prompts have no answer: all of their rollouts are dropped, and no batch comes after that.
#[test]
fn what_is_dropped_after_the_last_batch_is_in_the_metrics_too() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    for is_sync in [true, false] {
        let mut settings = sync(&model);
        settings.train.sync = is_sync;
        settings.train.async_queue_size = 0;
        settings.data.shuffle = false;
        settings.plugins.max_error_rate = 0.9;
        let mut data = prompts(10, "7");
        data.rows[8..].iter_mut().for_each(|row| row.label = None);
        let place = dir.path().join(is_sync.to_string());
        let (result, run) =
            run(settings, Ruled::new(by_seed), (data, None), &place, &CancellationToken::new());
        let summary = result.unwrap();
        assert_eq!((summary.steps, summary.dropped["infra"]), (2, 2 * 8));
        let rows = read_metrics(&run.join("metrics.jsonl")).unwrap();
        for (name, dropped) in [("dropped/infra", 16.0), ("rollout/dropped", 16.0), ("rollout/failed", 16.0)]
        {
            let all: f64 = rows.iter().filter_map(|row| row.values.get(name)).sum();
            assert_eq!(all, dropped, "{name}");
        }
        assert_eq!(json(&run.join("summary.json"))["dropped"]["infra"], 16);
    }
}

/// Rewards of two batches are all the same, so that nothing is learnt from them: no version is made and nothing is published,
/// while slots are given back, the data goes on, and a checkpoint between them is gone on from.
#[test]
fn batches_of_equal_rewards_are_no_steps() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let start = std::fs::read(model.join("model.safetensors")).unwrap();
    for (name, is_sync) in [("sync", true), ("streaming", false)] {
        let run_dir = dir.path().join(name);
        let mut settings = far(&model);
        settings.algo.importance = Importance::Old;
        settings.train.sync = is_sync;
        settings.train.async_queue_size = 0;
        settings.train.max_steps = Some(2);
        settings.ckpt.every = Some(1);
        if !is_sync {
            settings.replay.groups_per_batch = 1;
            settings.algo.importance = Importance::Sampled;
        }
        let all_right = Ruled::new(|_, _| (true, true));
        let (result, run, rows) = go(settings.clone(), &all_right, None, &run_dir);
        let summary = result.unwrap();
        assert_eq!((summary.steps, summary.idle_steps, rows.len()), (2, 2, 2));
        let log = std::fs::read_to_string(run.join("run.log")).unwrap();
        assert!(log.contains("step 1: the gradient is 0, so nothing was learnt"), "{log}");
        assert!(all_right.published.lock().unwrap().is_empty() && weights(&run) == start);
        for row in &rows {
            assert_eq!((row.values["train/grad_norm"], row.values["rollout/staleness_max"]), (0.0, 0.0));
            assert!(row.values["train/lr"] > 0.0 && row.values["train/tokens"] > 0.0);
            assert_eq!(
                row.values.get("replay/groups").copied().unwrap_or(0.0),
                0.0,
                "there is nothing to learn again"
            );
        }

        settings.train.max_steps = Some(4);
        settings.algo.entropy_coef = 0.01;
        let from = From { checkpoint: Checkpoint::find(&run).unwrap().checkpoint, ..From::default() };
        assert_eq!(from.checkpoint.as_ref().unwrap().step(), 2);
        let generator = Ruled::new(by_seed);
        let prompts = (prompts(40, "7"), None);
        let (result, run) = run_from(
            from,
            settings,
            Arc::clone(&generator),
            prompts,
            (&dir.path().join(format!("{name}-on")), &CancellationToken::new()),
        );
        assert_eq!(result.unwrap().steps, 4);
        // First the weights of the checkpoint, which are those of version 0 still.
        assert_eq!(*generator.published.lock().unwrap(), [0, 1, 2]);
        assert!(weights(&run) != start);
    }
}

/// Nothing is as probable as when it was sampled: every batch is masked whole, and the second is one too many.
#[test]
fn a_run_that_masks_everything_warns_and_then_stops() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = sync(&model);
    settings.algo.importance = Importance::Old;
    settings.algo.correction = Correction {
        level: CorrectionLevel::Token,
        low: Some(1.0),
        high: Some(1.0),
        max_masked_batches: Some(2),
        ..Correction::default()
    };
    let (result, run, rows) = go(settings.clone(), &Ruled::new(by_seed), None, &dir.path().join("stops"));
    assert!(
        matches!(result, Err(TrainError::Masked { step: 2, batches: 2, low: 1.0, high: 1.0 })),
        "{result:?}"
    );
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.values["train/correction_outside"] == 1.0));
    let log = std::fs::read_to_string(run.join("run.log")).unwrap();
    for step in 1..=2 {
        let warning = format!("step {step}: 100.0% of the batch is outside the band of algo.correction");
        assert!(log.contains(&warning), "{log}");
    }
    let reason = json(&run.join("status.json"))["reason"].to_string();
    assert!(reason.contains("algo.correction"), "{reason}");
    assert!(weights(&run) == std::fs::read(model.join("model.safetensors")).unwrap(), "nothing was learnt");
    // Without a bound it goes on, and warns.
    settings.algo.correction.max_masked_batches = None;
    settings.train.max_steps = Some(4);
    let (result, run, _) = go(settings, &Ruled::new(by_seed), None, &dir.path().join("goes-on"));
    let summary = result.unwrap();
    assert_eq!((summary.masked_in_a_row, summary.idle_steps), (4, 4));
    let log = std::fs::read_to_string(run.join("run.log")).unwrap();
    assert!(log.contains("step 4: 100.0% of the batch") && log.contains("now in 4 steps in a row"), "{log}");
    assert!(
        !log.contains("step 3:") && !log.contains("alike"),
        "ever more rarely, and for one reason: {log}"
    );
}

/// The table of a section of ARCHITECTURE.md: names, in which a word in capitals stands for any.
pub(crate) fn table(title: &str) -> Vec<String> {
    let text = include_str!("../../../../ARCHITECTURE.md");
    let (_, section) = text.split_once(&format!("\n## {title}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('|'));
    names.flat_map(|(names, _)| names.split(',')).map(|name| name.trim().trim_matches('`').into()).collect()
}

fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.split('/'), name.split('/'));
    pattern.clone().count() == name.clone().count()
        && pattern.zip(name).all(|(pattern, name)| {
            let fixed = pattern.trim_end_matches(|c: char| c.is_ascii_uppercase());
            if fixed == pattern { fixed == name } else { name.len() > fixed.len() && name.starts_with(fixed) }
        })
}

#[test]
fn every_metric_is_in_the_table_and_the_table_has_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let dense = model(dir.path());
    let mut written = BTreeSet::new();
    let mut runs: BTreeMap<&str, TrainSettings> = BTreeMap::new();
    let mut settings = sync(&dense);
    settings.reward.name = vec!["exact-match".into(), "novelty".into()];
    settings.algo.dual_clip = Some(3.0);
    settings.reward.clip_high = Some(1.0);
    settings.reward.overlong_cache = Some(1);
    settings.reward.overlong_penalty = Some(0.5);
    settings.rollout.filter.by = FilterBy::PassRate;
    settings.rollout.samples_per_prompt = 3;
    settings.train.mask_truncated = true;
    settings.train.max_steps = Some(2);
    settings.eval.samples = 2;
    settings.eval.k = vec![1, 2];
    runs.insert("all", settings);
    let mut settings = sync(&dense);
    settings.train.sync = false;
    settings.train.async_queue_size = 0;
    settings.data.passes = 2;
    settings.data.curriculum.easy_share = 0.5;
    settings.replay.groups_per_batch = 2;
    settings.train.max_steps = Some(2);
    runs.insert("again", settings);
    let mut settings = sync(&moe_model(dir.path()));
    settings.moe.router_aux_coef = 0.1;
    settings.algo.correction.level = CorrectionLevel::Token;
    settings.train.max_steps = Some(1);
    runs.insert("experts", settings);
    let mut settings = sync(&dense);
    settings.algo.estimator = "gae".into();
    settings.algo.kl.coef = 0.1;
    settings.algo.kl.r#in = KlIn::Reward;
    settings.train.max_steps = Some(1);
    runs.insert("critic", settings);
    for (name, settings) in runs {
        let with_source = |prompts: Prompts| Prompts {
            rows: (prompts.rows.into_iter())
                .map(|task| Task { fields: vec![("data_source".into(), "digits".into())], ..task })
                .collect(),
            ..prompts
        };
        let data = (with_source(prompts(40, "7")), Some(with_source(prompts(4, "7"))));
        let generator = Ruled::new(|_, seed| (seed.is_multiple_of(3), !seed.is_multiple_of(5)));
        let (result, run) = run(settings, generator, data, &dir.path().join(name), &CancellationToken::new());
        result.unwrap();
        let rows = read_metrics(&run.join("metrics.jsonl")).unwrap();
        written.extend(rows.into_iter().flat_map(|row| row.values.into_keys()));
    }
    let table = table("Metrics");
    let unknown: Vec<&String> =
        written.iter().filter(|name| !table.iter().any(|pattern| matches(pattern, name))).collect();
    assert!(unknown.is_empty(), "not in the table: {unknown:?}");
    let unused: Vec<&String> =
        table.iter().filter(|pattern| !written.iter().any(|name| matches(pattern, name))).collect();
    assert!(unused.is_empty(), "never written: {unused:?}");
}
