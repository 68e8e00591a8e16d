//! The loop with a scripted generator: what it trains does not depend on timing.

use crate::parts::*;
use molt_core::ids::WeightVersion;
use molt_core::sampling::Finish;
use molt_core::settings::{ParameterValue, TrainSettings};
use molt_core::trajectory::Sampled;
use molt_generator::{Generation, Generator, GeneratorError, Request, WeightUpdate};
use molt_trainer::TrainError;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

/// Samples `7` or another digit as the seed says, and lets others go first as `salt` says.
pub(crate) struct Scripted {
    salt: u64,
    version: AtomicU64,
    published: Mutex<Vec<u64>>,
}

impl Scripted {
    pub(crate) fn new(salt: u64) -> Arc<Self> {
        Arc::new(Self { salt, version: AtomicU64::new(0), published: Mutex::default() })
    }
}

impl Generator for Scripted {
    async fn generate(&self, request: Request) -> Result<Generation, GeneratorError> {
        for _ in 0..(request.seed ^ self.salt.wrapping_mul(0x9E37_79B9)) % 7 {
            tokio::task::yield_now().await;
        }
        // In the test vocabulary a printable character has the id of its byte less 33.
        let digit = if request.seed.is_multiple_of(3) { 7 } else { (request.seed >> 8) as u32 % 7 };
        let version = WeightVersion(self.version.load(Ordering::SeqCst));
        let sample = |token, place: u64| {
            let logprob = -1.0 - ((request.seed >> place) % 1000) as f32 / 250.0;
            Sampled { token, logprob, version }
        };
        Ok(Generation {
            sampled: vec![sample(u32::from(b'0') - 33 + digit, 16), sample(263, 32)],
            finish: Finish::Stop,
            routing: None,
        })
    }

    async fn load_weights(&self, update: WeightUpdate) -> Result<(), GeneratorError> {
        self.version.store(update.version.0, Ordering::SeqCst);
        self.published.lock().unwrap().push(update.version.0);
        Ok(())
    }
}

/// A script knows nothing of the model, so its log-probabilities are far from the model's.
pub(crate) fn far(model: &Path) -> TrainSettings {
    let mut settings = settings(model);
    settings.train.max_logprob_gap = Some(1e3);
    settings
}

#[test]
fn without_a_queue_the_weights_are_those_of_the_synchronous_mode() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut all = Vec::new();
    for (name, sync, salt) in [("sync", true, 0), ("queue-0", false, 1), ("again", false, 2)] {
        let mut settings = far(&model);
        settings.train.sync = sync;
        settings.train.async_queue_size = 0;
        settings.data.passes = 2;
        let prompts = (prompts(10, "7"), None);
        let stop = CancellationToken::new();
        let (result, run_dir) = run(settings, Scripted::new(salt), prompts, &dir.path().join(name), &stop);
        let summary = result.unwrap();
        assert_eq!((summary.steps, summary.tokens), (5, 20 * 8 * 2));
        all.push(weights(&run_dir));
    }
    assert!(all[0] == all[1], "queue bound 0 differs from the synchronous mode");
    assert!(all[1] == all[2], "two runs of one seed differ");
    assert!(all[0] != std::fs::read(model.join("model.safetensors")).unwrap(), "nothing was learnt");
}

#[test]
fn a_batch_in_several_steps_publishes_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = moving(far(&model(dir.path())));
    settings.train.steps_per_batch = 3;
    settings.train.max_steps = Some(2);
    let generator = Scripted::new(0);
    let prompts = (prompts(40, "7"), Some(prompts(4, "7")));
    let (result, run_dir) =
        run(settings, Arc::clone(&generator), prompts, &dir.path().join("run"), &CancellationToken::new());
    let summary = result.unwrap();
    assert_eq!((summary.steps, summary.tokens), (2, 2 * 4 * 8 * 2));
    assert_eq!(*generator.published.lock().unwrap(), [3, 6]);
    let accuracy = summary.held_out_accuracy_before.unwrap();
    assert_eq!(summary.held_out_accuracy_after, Some(accuracy), "the script does not learn");
    let on_disk = json(&run_dir.join("summary.json"));
    assert_eq!(on_disk["held_out_accuracy_before"], accuracy);
    assert_eq!((&on_disk["steps"], &on_disk["seed"]), (&2.into(), &3.into()));
    for file in ["trajectories/step-000001.md", "trajectories/step-000002.md", "model/tokenizer.json"] {
        assert!(run_dir.join(file).is_file(), "{file}");
    }
}

#[test]
fn a_gap_beyond_the_bound_stops_the_run_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let prompts = (prompts(40, "7"), None);
    let (result, run_dir) =
        run(settings(&model), Scripted::new(0), prompts, &dir.path().join("run"), &CancellationToken::new());
    assert!(matches!(result, Err(TrainError::LogprobGap { step: 1, gap, .. }) if gap > 0.01));
    let status = json(&run_dir.join("status.json"));
    assert_eq!(status["state"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("train.max_logprob_gap"), "{status}");
    assert_eq!(json(&run_dir.join("summary.json"))["steps"], 1);
    // Its step was made, and is there to be looked at.
    assert!(weights(&run_dir) != std::fs::read(model.join("model.safetensors")).unwrap());
}

#[test]
fn weights_that_are_no_numbers_are_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = far(&model(dir.path()));
    // More than the largest number of 32 bits.
    settings.optim.lr = 1e39;
    let prompts = (prompts(40, "7"), None);
    let (result, run_dir) =
        run(settings, Scripted::new(0), prompts, &dir.path().join("run"), &CancellationToken::new());
    assert!(result.is_err());
    assert_eq!(json(&run_dir.join("status.json"))["state"], "failed");
    assert!(!run_dir.join("model").exists());
}

#[test]
fn an_estimator_that_fails_stops_the_run_and_what_was_learnt_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = far(&model);
    settings.algo.estimator = "hostile-estimator".into();
    // What makes it say that there is nothing to estimate.
    settings.algo.parameters.insert("act".into(), ParameterValue::Number(5.0));
    let prompts = (prompts(40, "7"), None);
    let (result, run_dir) =
        run(settings, Scripted::new(0), prompts, &dir.path().join("run"), &CancellationToken::new());
    assert!(matches!(result, Err(TrainError::Estimator { step: 1, .. })));
    let status = json(&run_dir.join("status.json"));
    assert!(status["reason"].as_str().unwrap().contains("there is nothing to estimate"), "{status}");
    assert!(weights(&run_dir) == std::fs::read(model.join("model.safetensors")).unwrap());
}

#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let settings = far(&model(dir.path()));
    let stop = CancellationToken::new();
    stop.cancel();
    let (result, run_dir) =
        run(settings, Scripted::new(0), (prompts(40, "7"), None), &dir.path().join("run"), &stop);
    assert_eq!(result.unwrap().steps, 0);
    assert_eq!(json(&run_dir.join("status.json"))["state"], "interrupted");
    assert!(run_dir.join("model/model.safetensors").is_file());
}
