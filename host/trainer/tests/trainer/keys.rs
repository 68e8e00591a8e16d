//! No setting of the algorithm without an effect: each is changed in a run, and what it is for becomes another.

use crate::beside::teacher;
use crate::parts::*;
use crate::scripted::far;
use molt_core::ids::{Token, WeightVersion};
use molt_core::sampling::Finish;
use molt_core::settings::{ANY, Settings, TrainSettings, keys, load};
use molt_core::trajectory::Sampled;
use molt_generator::{Generation, Generator, GeneratorError, Request, WeightUpdate};
use molt_observe::{Row, read_metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;

/// The sections of which every key is in [`TABLE`] or in [`ELSEWHERE`].
const SECTIONS: [&str; 10] =
    ["algo", "critic", "eval", "optim", "reference", "replay", "reward", "rollout", "teacher", "train"];

/// What a setting is seen by.
#[derive(Debug, Clone, Copy)]
enum By {
    /// The weights at the end.
    Weights,
    /// The values of this metric, step by step.
    Metric(&'static str),
    /// There is this file in the run directory.
    File(&'static str),
    /// The run ends with an error.
    Error,
    /// It does not go with the others.
    Refusal,
}
use By::{Error, File, Metric, Refusal, Weights};

type Given = &'static [(&'static str, &'static str)];

const PLAIN: Given = &[];
const WHITENED: Given = &[("algo.estimator", "reinforce-baseline")];
const REINFORCE: Given = &[("algo.estimator", "reinforce")];
const OLD: Given = &[("algo.importance", "old")];
const CORRECTED: Given = &[("algo.importance", "old"), ("algo.correction.level", "token")];
const ALL_OUTSIDE: Given = &[
    ("algo.importance", "old"),
    ("algo.correction.level", "token"),
    ("algo.correction.low", "1"),
    ("algo.correction.high", "1"),
];
const KL: Given = &[("algo.kl.coef", "0.1")];
const KL_REINFORCE: Given = &[("algo.kl.coef", "0.1"), ("algo.estimator", "reinforce")];
const KL_TARGET: Given = &[("algo.kl.coef", "0.1"), ("algo.kl.target", "1e-9")];
/// What a teacher implies of the divergence, since the settings of these runs are all given, with an estimator that takes it from
/// a reference too.
const DISTILL: Given = &[("algo.estimator", "reinforce"), ("algo.kl.coef", "1"), ("algo.kl.in", "reward")];
const GAE: Given = &[("algo.estimator", "gae"), ("critic.optim.lr", "1e-2")];
const GAE_TWICE: Given = &[("algo.estimator", "gae"), ("critic.optim.lr", "1e-2"), ("critic.passes", "2")];
const GAE_LINEAR: Given = &[("algo.estimator", "gae"), ("critic.optim.schedule", "linear")];
const LINEAR: Given = &[("optim.schedule", "linear")];
const REPLAY: Given = &[("replay.groups_per_batch", "2")];
const FILTER: Given = &[("rollout.filter.by", "pass_rate")];
const NARROW: Given =
    &[("rollout.filter.by", "pass_rate"), ("rollout.filter.low", "0.4"), ("rollout.filter.high", "0.6")];
const HOSTILE: Given = &[("reward.name", "hostile")];
const OVERLONG: Given = &[("reward.overlong_penalty", "0.5"), ("reward.overlong_cache", "4")];
const EVAL: Given = &[("eval.prompts", "held-out.jsonl")];
const EVAL_TWICE: Given = &[("eval.prompts", "held-out.jsonl"), ("eval.samples", "2")];

/// In a run with these settings, this key with this value is seen by that. OTHER is another model.
const TABLE: &[(Given, &str, &str, By)] = &[
    (PLAIN, "algo.estimator", "dr-grpo", Weights),
    (WHITENED, "algo.whiten", "false", Weights),
    (REINFORCE, "algo.parameters.gamma", "0.5", Weights),
    (PLAIN, "algo.loss", "gspo", Weights),
    (PLAIN, "algo.importance", "old", Weights),
    (PLAIN, "algo.clip_low", "0.9", Weights),
    (PLAIN, "algo.clip_high", "0.9", Weights),
    (PLAIN, "algo.dual_clip", "1.1", Weights),
    (PLAIN, "algo.aggregation", "seq-mean-token-mean", Weights),
    (PLAIN, "algo.entropy_coef", "0.1", Weights),
    (OLD, "algo.correction.level", "token", Metric("train/correction_outside")),
    (CORRECTED, "algo.correction.mode", "clip", Weights),
    (CORRECTED, "algo.correction.low", "0.9", Metric("train/correction_outside")),
    (CORRECTED, "algo.correction.high", "1.1", Metric("train/correction_outside")),
    (ALL_OUTSIDE, "algo.correction.max_masked_batches", "2", Error),
    (PLAIN, "algo.kl.coef", "0.1", Weights),
    (KL_REINFORCE, "algo.kl.in", "reward", Weights),
    (KL, "algo.kl.estimator", "k3", Weights),
    (KL, "algo.kl.target", "1e-9", Metric("algo/kl_coef")),
    (KL_TARGET, "algo.kl.horizon", "100", Metric("algo/kl_coef")),
    (KL, "reference.model", "OTHER", Weights),
    (DISTILL, "teacher.model", "OTHER", Weights),
    (GAE, "critic.model", "OTHER", Metric("critic/value_mean")),
    (GAE_TWICE, "critic.clip", "1e3", Metric("critic/clip_fraction")),
    (GAE, "critic.passes", "2", Metric("critic/value_mean")),
    (GAE, "critic.steps_per_batch", "2", Metric("critic/value_mean")),
    (GAE, "critic.warmup_steps", "1", Metric("train/tokens")),
    (GAE, "critic.optim.kind", "muon", Metric("critic/value_mean")),
    (GAE, "critic.optim.lr", "1e-3", Metric("critic/value_mean")),
    (GAE, "critic.optim.beta1", "0.5", Metric("critic/value_mean")),
    (GAE, "critic.optim.beta2", "0.5", Metric("critic/value_mean")),
    (GAE, "critic.optim.eps", "1e-2", Metric("critic/value_mean")),
    (GAE, "critic.optim.weight_decay", "0.5", Metric("critic/value_mean")),
    (GAE, "critic.optim.max_grad_norm", "1e-3", Metric("critic/value_mean")),
    (GAE, "critic.optim.schedule", "cosine", Metric("critic/lr")),
    (GAE, "critic.optim.warmup_steps", "2", Metric("critic/lr")),
    (GAE_LINEAR, "critic.optim.min_lr_ratio", "0.5", Metric("critic/lr")),
    (GAE, "critic.optim.freeze", "layers.0", Metric("critic/value_mean")),
    (PLAIN, "optim.kind", "muon", Weights),
    (PLAIN, "optim.lr", "1e-3", Weights),
    (PLAIN, "optim.beta1", "0.5", Weights),
    (PLAIN, "optim.beta2", "0.5", Weights),
    (PLAIN, "optim.eps", "1e-2", Weights),
    (PLAIN, "optim.weight_decay", "0.5", Weights),
    (PLAIN, "optim.max_grad_norm", "1e-3", Weights),
    (PLAIN, "optim.schedule", "cosine", Metric("train/lr")),
    (PLAIN, "optim.warmup_steps", "2", Metric("train/lr")),
    (LINEAR, "optim.min_lr_ratio", "0.5", Metric("train/lr")),
    (PLAIN, "optim.freeze", "layers.0", Weights),
    (REPLAY, "train.sync", "true", Refusal),
    (OLD, "train.async_queue_size", "1", Refusal),
    (PLAIN, "train.steps_per_batch", "2", Weights),
    (PLAIN, "train.epochs_per_batch", "2", Metric("train/tokens")),
    (PLAIN, "train.mask_truncated", "true", Metric("rollout/masked")),
    (PLAIN, "train.max_steps", "2", Metric("train/tokens")),
    (PLAIN, "train.max_logprob_gap", "1e-3", Error),
    (EVAL, "train.eval_every", "2", Metric("eval/accuracy")),
    (EVAL, "train.eval_at_start", "false", Metric("eval/accuracy")),
    (EVAL, "train.keep_best", "accuracy", File("best/best.json")),
    (PLAIN, "replay.groups_per_batch", "2", Metric("train/tokens")),
    (REPLAY, "replay.capacity", "2", Weights),
    (PLAIN, "rollout.batch_size", "2", Metric("rollout/groups")),
    (PLAIN, "rollout.samples_per_prompt", "4", Metric("rollout/finished")),
    (PLAIN, "rollout.min_group", "8", Metric("rollout/dropped")),
    (PLAIN, "rollout.filter.by", "pass_rate", Metric("before_filter/groups")),
    (FILTER, "rollout.filter.low", "0.3", Metric("before_filter/kept_rate")),
    (FILTER, "rollout.filter.high", "0.4", Metric("before_filter/kept_rate")),
    (NARROW, "rollout.filter.max_refills", "1", Error),
    (PLAIN, "rollout.temperature", "0.7", Weights),
    (PLAIN, "rollout.max_new_tokens", "1", Metric("rollout/length_max")),
    (PLAIN, "reward.name", "exact-match,novelty", Metric("reward/novelty")),
    (PLAIN, "reward.weight", "2", Metric("rollout/reward_mean")),
    (HOSTILE, "reward.lowest", "-1", Metric("rollout/reward_mean")),
    (PLAIN, "reward.clip_low", "0.5", Metric("rollout/reward_mean")),
    (PLAIN, "reward.clip_high", "0.5", Metric("rollout/reward_mean")),
    (OVERLONG, "reward.overlong_penalty", "0.25", Metric("rollout/overlong_penalty_mean")),
    (OVERLONG, "reward.overlong_cache", "8", Metric("rollout/overlong_penalty_mean")),
    (EVAL, "eval.samples", "2", Metric("eval/length_mean")),
    (EVAL_TWICE, "eval.k", "1,2", Metric("eval/pass@2")),
];

/// Keys that cannot be seen here, with the file and the name of the test that shows them: what only the binary reads, what
/// needs experts, and what is to change nothing but memory.
const ELSEWHERE: [(&str, &str, &str); 10] = [
    ("eval.max_context", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("eval.max_new_tokens", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("eval.prompts", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("eval.stop", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("eval.temperature", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("eval.top_p", "tests/e2e/settings.rs", "an_evaluation_samples_as_it_is_told"),
    ("rollout.max_context", "tests/e2e/settings.rs", "rollouts_end_where_they_are_told"),
    ("rollout.stop", "tests/e2e/settings.rs", "rollouts_end_where_they_are_told"),
    ("train.max_tokens_per_rank", "host/trainer/src/step/tests.rs", "layout_does_not_matter"),
    (
        "train.replay_routing",
        "host/trainer/tests/trainer/experts.rs",
        "rollouts_of_several_turns_are_trained_where_they_went",
    ),
];

/// Right, wrong, or something that no reward of the test can score, of one to eight tokens; some cut short, some empty. Its
/// log-probabilities are on both sides of the model's.
struct Mixed(AtomicU64);

impl Generator for Mixed {
    async fn generate(&self, request: Request) -> Result<Generation, GeneratorError> {
        let version = WeightVersion(self.0.load(Ordering::SeqCst));
        let seed = request.seed;
        let text = match seed {
            _ if seed.is_multiple_of(11) => "",
            _ if seed.is_multiple_of(3) => "7",
            _ if seed.is_multiple_of(5) => "invalid",
            _ => "333",
        };
        // In the test vocabulary a printable character has the id of its byte less 33.
        let mut tokens: Vec<Token> = text.bytes().map(|byte| Token::from(byte) - 33).collect();
        let ends = !seed.is_multiple_of(7) && tokens.len() < request.sampling.max_tokens;
        tokens.truncate(request.sampling.max_tokens);
        tokens.extend((ends && !tokens.is_empty()).then_some(263));
        let sample = |(place, token): (usize, Token)| {
            let logprob = -4.0 - ((seed >> (7 * place)) % 1000) as f32 / 250.0;
            Sampled { token, logprob, version }
        };
        Ok(Generation {
            sampled: tokens.into_iter().enumerate().map(sample).collect(),
            finish: if ends { Finish::Stop } else { Finish::Length },
            routing: None,
        })
    }

    async fn load_weights(&self, update: WeightUpdate) -> Result<(), GeneratorError> {
        self.0.store(update.version.0, Ordering::SeqCst);
        Ok(())
    }
}

/// How a run came out.
struct Ended {
    failed: bool,
    weights: Option<Vec<u8>>,
    rows: Vec<Row>,
    dir: PathBuf,
}

impl Ended {
    /// The values of a metric where it is written.
    fn series(&self, name: &str) -> Vec<(u64, f64)> {
        self.rows.iter().filter_map(|row| Some((row.step, *row.values.get(name)?))).collect()
    }
}

struct Runs {
    dir: tempfile::TempDir,
    base: String,
    other: String,
    count: usize,
}

impl Runs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut base = far(&model(dir.path()));
        base.data.prompts = "prompts.jsonl".into();
        base.rollout.max_new_tokens = 8;
        base.train.async_queue_size = 0;
        base.train.max_steps = Some(3);
        let other = teacher(dir.path()).to_str().unwrap().to_owned();
        // What is rolled out is handed over, and the file only told from others.
        std::fs::write(dir.path().join("held-out.jsonl"), "{}").unwrap();
        Self { base: base.to_toml().unwrap(), other, dir, count: 0 }
    }

    /// None if the settings are refused.
    fn run(&mut self, given: &[(&str, &str)]) -> Option<Ended> {
        let held_out = self.dir.path().join("held-out.jsonl");
        let flag = |(key, value): &(&str, &str)| {
            let value =
                value.replace("OTHER", &self.other).replace("held-out.jsonl", held_out.to_str().unwrap());
            (key.to_string(), value)
        };
        let flags: Vec<_> = given.iter().map(flag).collect();
        let settings: TrainSettings = load(Some((Path::new("base.toml"), &self.base)), &flags).unwrap();
        settings.validate().ok()?;
        self.count += 1;
        let dir = self.dir.path().join(self.count.to_string());
        let held_out = settings.eval.prompts.is_some().then(|| prompts(6, "7"));
        let data = (prompts(80, "7"), held_out);
        let generator = Arc::new(Mixed(AtomicU64::new(0)));
        let (result, dir) = run(settings, generator, data, &dir, &CancellationToken::new());
        Some(Ended {
            failed: result.is_err(),
            weights: std::fs::read(dir.join("model/model.safetensors")).ok(),
            rows: read_metrics(&dir.join("metrics.jsonl")).unwrap(),
            dir,
        })
    }
}

#[test]
fn every_setting_of_the_algorithm_is_seen() {
    let mut runs = Runs::new();
    let mut bases: BTreeMap<Given, Ended> = BTreeMap::new();
    let mut inert = Vec::new();
    for &(given, key, value, by) in TABLE {
        let base = bases.entry(given).or_insert_with(|| {
            let base = runs.run(given).unwrap_or_else(|| panic!("{given:?} are refused"));
            assert!(!base.failed, "a run with {given:?} fails");
            base
        });
        let changed = runs.run(&[given, &[(key, value)]].concat());
        let is_seen = match (by, &changed) {
            (Refusal, changed) => changed.is_none(),
            (_, None) => false,
            (Error, Some(changed)) => changed.failed,
            (_, Some(changed)) if changed.failed => false,
            (File(name), Some(changed)) => changed.dir.join(name).is_file() && !base.dir.join(name).exists(),
            (Metric(name), Some(changed)) => changed.series(name) != base.series(name),
            (Weights, Some(changed)) => changed.weights != base.weights,
        };
        if !is_seen {
            inert.push(format!("{key} {value} in a run with {given:?}, by {by:?}"));
        }
    }
    assert!(inert.is_empty(), "not seen:\n{}", inert.join("\n"));
    // What differs above differs by the setting: the same settings give the same.
    let again = runs.run(PLAIN).unwrap();
    assert!(again.weights == bases[PLAIN].weights);
    for name in ["rollout/reward_mean", "rollout/dropped", "train/tokens", "rollout/length_max"] {
        assert_eq!(again.series(name), bases[PLAIN].series(name));
    }
}

#[test]
fn every_key_of_these_sections_is_in_the_table_or_shown_elsewhere() {
    let known: BTreeSet<&str> =
        TABLE.iter().map(|(_, key, ..)| *key).chain(ELSEWHERE.iter().map(|(key, ..)| *key)).collect();
    let all = keys::<TrainSettings>();
    let own = all.iter().filter(|key| SECTIONS.contains(&&*key.path[0]));
    let is_known = |name: &String| match name.strip_suffix(ANY) {
        Some(map) => known.iter().any(|key| key.starts_with(map)),
        None => known.contains(name.as_str()),
    };
    let missing: Vec<String> = own.map(|key| key.name()).filter(|name| !is_known(name)).collect();
    assert_eq!(missing, [""; 0]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (key, file, test) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}(")), "{key}: no test {test} in {file}");
    }
}
