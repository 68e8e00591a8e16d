//! Runs with models beside the policy: a reference, a teacher, a critic.

use crate::parts::*;
use crate::scripted::{Scripted, far};
use molt_core::ids::WeightVersion;
use molt_core::settings::{Generator as GeneratorSettings, KlIn, Optim, TrainSettings};
use molt_generator::Engine;
use molt_model::{Chat, Config, Decoder, Weights};
use molt_observe::read_metrics;
use molt_trainer::TrainError;
use molt_trainer::checkpoint::{Checkpoint, From};
use molt_trainer::rl::Training;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The values of a metric, step by step.
fn series(run_dir: &Path, name: &str) -> Vec<f64> {
    let rows = read_metrics(&run_dir.join("metrics.jsonl")).unwrap();
    rows.iter().filter_map(|row| row.values.get(name).copied()).collect()
}

fn script(settings: TrainSettings, dir: &Path) -> PathBuf {
    let (result, run_dir) =
        run(settings, Scripted::new(0), (prompts(40, "7"), None), dir, &CancellationToken::new());
    result.unwrap();
    run_dir
}

/// A synchronous run of six steps.
fn six_steps(model: &Path) -> TrainSettings {
    let mut settings = far(model);
    settings.train.sync = true;
    settings.train.async_queue_size = 0;
    settings.train.max_steps = Some(6);
    settings
}

/// Steps of a run, and of one that stopped in between and went on, end at the same weights and metrics.
fn goes_on_exactly(settings: &TrainSettings, metrics: &[&str], dir: &Path) -> PathBuf {
    let whole = script(settings.clone(), &dir.join("whole"));
    let mut first = settings.clone();
    first.train.max_steps = Some(3);
    first.ckpt.every = Some(3);
    // The schedule ends where it did.
    let first = script(first, &dir.join("first"));
    let checkpoint = Checkpoint::find(&first).unwrap().checkpoint;
    let from = From { checkpoint: Some(checkpoint.unwrap()), ..From::default() };
    let stop = CancellationToken::new();
    let parts = (dir.join("second"), &stop);
    let (result, second) =
        run_from(from, settings.clone(), Scripted::new(0), (prompts(40, "7"), None), (&parts.0, parts.1));
    result.unwrap();
    assert!(weights(&whole) == weights(&second), "the weights are others");
    for name in metrics {
        let whole = series(&whole, name);
        assert_eq!(whole.len(), 6, "{name}");
        assert_eq!([series(&first, name), series(&second, name)].concat(), whole, "{name}");
    }
    whole
}

#[test]
fn a_divergence_in_the_loss_is_measured_and_weighed() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = six_steps(&model);
    settings.algo.kl.coef = 0.1;
    settings.algo.kl.target = Some(1e-9);
    settings.algo.kl.horizon = Some(320.0);
    let metrics = ["train/kl_reference", "algo/kl_coef"];
    let run_dir = goes_on_exactly(&settings, &metrics, dir.path());
    let kl = series(&run_dir, "train/kl_reference");
    // It starts at its reference, up to the rounding of float32.
    assert!(kl[0] < 1e-9 && kl[5] > 1e-6, "{kl:?}");
    // A batch is 32 rollouts: a tenth of the horizon, and the weight moves by a fiftieth.
    let coefficients = series(&run_dir, "algo/kl_coef");
    assert_eq!(coefficients[0], 0.1);
    assert!((coefficients[5] / coefficients[4] - 1.02).abs() < 1e-12, "{coefficients:?}");
    settings.algo.kl.coef = 0.0;
    settings.algo.kl.target = None;
    settings.algo.kl.horizon = None;
    let without = script(settings, &dir.path().join("without"));
    assert!(weights(&without) != weights(&run_dir), "it does nothing");
    assert!(series(&without, "algo/kl_coef").is_empty());
}

/// So much of it that nothing else counts: the policy goes back to its reference.
#[test]
fn a_divergence_in_the_reward_draws_to_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let of = |coef| {
        let mut settings = six_steps(&model);
        settings.algo.estimator = "reinforce".into();
        settings.algo.kl.coef = coef;
        settings.algo.kl.r#in = KlIn::Reward;
        settings
    };
    let run_dir = goes_on_exactly(&of(0.5), &["train/kl_reference", "algo/kl_coef"], dir.path());
    assert_eq!(series(&run_dir, "algo/kl_coef"), [0.5; 6]);
    let kl = series(&run_dir, "train/kl_reference");
    assert!(kl[0].abs() < 1e-6 && kl[5].abs() > 1e-6, "{kl:?}");
    let other = script(of(1e-3), &dir.path().join("other"));
    assert!(weights(&other) != weights(&run_dir), "its weight does nothing");
}

#[test]
fn a_critic_learns_the_returns_before_the_policy_moves() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = six_steps(&model);
    settings.algo.estimator = "gae".into();
    settings.critic.optim = Optim { lr: 5e-3, ..Optim::default() };
    settings.critic.passes = 2;
    settings.critic.warmup_steps = 2;
    settings.replay.groups_per_batch = 2;
    let metrics = ["critic/loss", "critic/value_mean", "critic/clip_fraction", "critic/grad_norm"];
    let run_dir = goes_on_exactly(&settings, &metrics, dir.path());
    assert_eq!(series(&run_dir, "train/loss").len(), 4, "the policy waits for two steps");
    assert_eq!(series(&run_dir, "rollout/length_mean"), [2.0; 6]);
    // Nothing was trained before the third step, so the fourth is the first with something to train again.
    assert_eq!(series(&run_dir, "replay/groups"), [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]);
    let warns = |run_dir: &Path| {
        let log = std::fs::read_to_string(run_dir.join("run.log")).unwrap_or_default();
        log.contains("critic.warmup_steps is 10, and the run has 10 batches at most")
    };
    assert!(!warns(&run_dir));

    let mut long = settings.clone();
    long.train.max_steps = Some(10);
    long.critic.warmup_steps = 10;
    let waits = script(long, &dir.path().join("waits"));
    assert!(warns(&waits));
    assert!(weights(&waits) == std::fs::read(model.join("model.safetensors")).unwrap(), "the policy waited");
    let losses = series(&waits, "critic/loss");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[7..]) < 0.8 * mean(&losses[..3]), "{losses:?}");
}

/// A policy that waits is where it was, which says nothing of the weight that it needs.
#[test]
fn the_weight_of_the_divergence_waits_with_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = six_steps(&model(dir.path()));
    settings.algo.estimator = "gae".into();
    settings.algo.kl.coef = 0.1;
    settings.algo.kl.r#in = KlIn::Reward;
    settings.algo.kl.target = Some(100.0);
    settings.algo.kl.horizon = Some(320.0);
    settings.critic.warmup_steps = 2;
    let run_dir = script(settings, &dir.path().join("run"));
    // What the third step is trained with is that of the settings, and then a fiftieth less in every step.
    let coefficients = series(&run_dir, "algo/kl_coef");
    assert_eq!(coefficients.len(), 6);
    for (step, coefficient) in coefficients.into_iter().enumerate() {
        let want = 0.1 * 0.98_f64.powi(step.saturating_sub(2) as i32);
        assert!((coefficient - want).abs() < 1e-12, "{coefficient} is not {want} in step {}", step + 1);
    }
}

/// What no plugin has made is not said to be a plugin's.
#[test]
fn a_model_that_gives_no_numbers_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let decoder = Decoder::load(&model).unwrap();
    for (_, norm) in decoder.parameters().iter().filter(|(name, _)| name == "model.norm.weight") {
        let _ = norm.get(0).fill_(f64::NAN);
    }
    let broken = saved(&decoder, dir.path().join("broken"));
    let run = |name: &str, change: &dyn Fn(&mut TrainSettings)| {
        let mut settings = six_steps(&model);
        settings.algo.kl.coef = 0.1;
        settings.algo.kl.r#in = KlIn::Reward;
        settings.algo.estimator = "reinforce".into();
        change(&mut settings);
        let prompts = (prompts(40, "7"), None);
        let (result, _) =
            run(settings, Scripted::new(0), prompts, &dir.path().join(name), &CancellationToken::new());
        let error = result.unwrap_err();
        assert!(matches!(error, TrainError::NoNumber { step: 1, .. }), "{error}");
        error.to_string()
    };
    let error = run("reward", &|settings| settings.reference.model = Some(broken.clone()));
    assert!(error.contains("the reference gives a token a log-probability that is no number"), "{error}");
    let error = run("loss", &|settings| {
        settings.reference.model = Some(broken.clone());
        settings.algo.kl.r#in = KlIn::Loss;
    });
    assert!(error.contains("the reference gives") && error.contains("reference.model"), "{error}");
    let error = run("teacher", &|settings| settings.teacher.model = Some(broken.clone()));
    assert!(error.contains("the teacher gives") && error.contains("teacher.model"), "{error}");
    let error = run("critic", &|settings| {
        settings.critic.model = Some(broken.clone());
        settings.algo.estimator = "gae".into();
    });
    assert!(error.contains("the critic gives a token a value that is no number"), "{error}");
}

#[test]
fn without_the_critic_that_its_estimator_needs_a_run_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = six_steps(&model(dir.path()));
    settings.algo.estimator = "gae".into();
    let data = (prompts(40, "7"), None);
    let all = training(From::default(), settings, Scripted::new(0), data);
    let without = Training { critic: None, ..all };
    let (result, run_dir) = go(without, &dir.path().join("run"), &CancellationToken::new());
    assert!(matches!(result, Err(TrainError::NeedsCritic { estimator }) if estimator == "gae"));
    assert!(!run_dir.join("model").exists());
}

#[test]
fn a_checkpoint_without_a_critic_is_of_another_run() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = six_steps(&model);
    settings.ckpt.every = Some(2);
    settings.train.max_steps = Some(2);
    let first = script(settings.clone(), &dir.path().join("first"));
    let checkpoint = Checkpoint::find(&first).unwrap().checkpoint.unwrap();
    let weights = Weights::open(&model).unwrap();
    checkpoint.fits(weights.shapes(), false).unwrap();
    let error = checkpoint.fits(weights.shapes(), true).unwrap_err().to_string();
    assert!(error.contains("it has no critic, and this run trains one: take an algo.estimator"), "{error}");
    settings.algo.estimator = "gae".into();
    settings.train.max_steps = Some(2);
    let with_critic = script(settings.clone(), &dir.path().join("with-critic"));
    let checkpoint = Checkpoint::find(&with_critic).unwrap().checkpoint.unwrap();
    checkpoint.fits(weights.shapes(), true).unwrap();
    let error = checkpoint.fits(weights.shapes(), false).unwrap_err().to_string();
    assert!(error.contains("it has a critic, and this run trains none: take an algo.estimator"), "{error}");
}

/// A larger model that likes some tokens much better than others.
pub(crate) fn teacher(dir: &Path) -> PathBuf {
    let config = r#"{
        "model_type": "llama", "vocab_size": 266, "hidden_size": 48, "intermediate_size": 64, "head_dim": 16,
        "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "hidden_act": "silu", "initializer_range": 0.2
    }"#;
    saved(&Decoder::random(Config::parse(config).unwrap(), 23), dir.join("teacher"))
}

/// Without any reward: the student samples, and learns what its teacher thinks of it.
#[test]
fn a_student_moves_toward_its_teacher() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = settings(&model);
    settings.teacher.model = Some(teacher(dir.path()));
    settings.algo.estimator = "on-policy-distill".into();
    settings.algo.kl.coef = 1.0;
    settings.algo.kl.r#in = KlIn::Reward;
    settings.reward.name = Vec::new();
    settings.rollout.batch_size = 8;
    settings.train.sync = true;
    settings.train.async_queue_size = 0;
    settings.train.max_steps = Some(80);
    let decoder = Decoder::load(&model).unwrap();
    let chat = Chat::load(&model, None).unwrap();
    let generator = GeneratorSettings::default();
    let engine = Engine::start(decoder, Arc::clone(chat.tokenizer()), WeightVersion(0), &generator, 128);
    let prompts = (prompts(640, "7"), None);
    let (result, run_dir) =
        run(settings, Arc::new(engine), prompts, &dir.path().join("run"), &CancellationToken::new());
    assert_eq!(result.unwrap().steps, 80);
    let kl = series(&run_dir, "train/kl_reference");
    let mean = |kl: &[f64]| kl.iter().sum::<f64>() / kl.len() as f64;
    assert!(mean(&kl[70..]) < 0.6 * mean(&kl[..3]), "{kl:?}");
}
