//! A loss as a plugin: that of a run, and the host's own of the same name beside it.

use crate::parts::*;
use crate::scripted::{Scripted, far};
use molt_core::settings::{CorrectionLevel, Importance, TrainSettings};
use molt_sandbox::LossBatch;
use molt_trainer::TrainError;
use molt_trainer::given::check_loss;
use molt_trainer::loss::surrogate::Surrogate;
use tokio_util::sync::CancellationToken;

/// Every corner of ratio and advantage: loss and slope of each token are those of the host.
#[test]
fn the_plugin_is_the_hosts_loss() {
    let plugin = loss("ppo-clip");
    let (mut batch, mut expected) =
        (LossBatch { segment_offsets: vec![0], ..LossBatch::default() }, Vec::new());
    let native = Surrogate::Ppo { low: 0.2, high: 0.2, dual: None };
    for at in 0..400_u32 {
        let (logprob, apart) = (-0.01 * (at % 37) as f32, ((at * 7919) % 401) as f32 / 100.0 - 2.0);
        let advantage = ((at * 31) % 23) as f32 / 7.0 - 1.5;
        batch.logprobs.push(logprob);
        batch.sampled.push(logprob - apart);
        batch.old.push(0.0);
        batch.advantages.push(advantage);
        if at % 9 == 0 {
            batch.segment_offsets.push(batch.logprobs.len() as u32);
        }
        let value = native.value(logprob.into(), (logprob - apart).into(), 0.0, advantage.into());
        expected.push([value.loss, value.slope]);
    }
    batch.segment_offsets.push(400);
    let found = runtime().block_on(plugin.compute(&batch)).unwrap();
    for ((loss, slope), want) in found.losses.iter().zip(&found.slopes).zip(expected) {
        for (got, want) in [*loss, *slope].into_iter().map(f64::from).zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
        }
    }
}

/// The reward of a step, and the weights that a run of this loss ends with.
fn trained(settings: &TrainSettings, name: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings.clone();
    settings.algo.loss = name.into();
    // With a queue, what is in a batch depends on timing.
    settings.train.sync = true;
    settings.train.async_queue_size = 0;
    settings.train.steps_per_batch = 2;
    settings.train.max_steps = Some(2);
    let prompts = (prompts(40, "7"), None);
    let (result, run_dir) =
        run(settings, Scripted::new(0), prompts, &dir.path().join("run"), &CancellationToken::new());
    assert_eq!(result.unwrap().steps, 2);
    weights(&run_dir)
}

/// The mean difference between the numbers of two files.
fn apart(a: &[u8], b: &[u8]) -> f32 {
    let numbers = |file: &[u8]| -> Vec<f32> {
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        file[8 + header..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum::<f32>() / a.len() as f32
}

#[test]
fn a_run_with_the_plugin_ends_where_one_with_the_hosts_loss_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = far(&model(dir.path()));
    settings.optim.lr = 1e-3;
    let [plugin, native, other] = ["ppo-clip", "ppo", "importance"].map(|name| trained(&settings, name));
    // A step changes a weight by about optim.lr, in four steps.
    assert!(apart(&plugin, &native) < 1e-6, "{}", apart(&plugin, &native));
    assert!(apart(&other, &native) > 1e-5, "another loss is another run");
}

/// With two optimiser steps on a batch, the old log-probabilities are those before the first.
#[test]
fn compared_with_the_old_policy_a_run_is_not_that_without_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = far(&model(dir.path()));
    let sampled = trained(&settings, "ppo");
    settings.algo.importance = Importance::Old;
    let old = trained(&settings, "ppo");
    assert!(apart(&sampled, &old) > 1e-5, "the script did not sample from the policy that is trained");
}

/// What a loss makes of the age of tokens it shows itself, and nothing corrects for it twice, or not at all.
#[test]
fn a_loss_goes_with_what_corrects_for_older_weights() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = TrainSettings::default();
    settings.model.path = model(dir.path());
    let check = |settings: &TrainSettings, name: &str| {
        let mut settings = settings.clone();
        settings.algo.loss = name.into();
        runtime().block_on(check_loss(&settings, &loss(name)))
    };
    // ppo-clip compares with the probability that a token was sampled with, and old-clip does not.
    check(&settings, "ppo-clip").unwrap();
    let error = check(&settings, "old-clip").unwrap_err();
    assert!(matches!(&error, TrainError::CorrectsNothing { loss } if loss == "old-clip"), "{error}");
    settings.replay.groups_per_batch = 1;
    settings.train.async_queue_size = 0;
    check(&settings, "old-clip").unwrap_err();
    settings.replay.groups_per_batch = 0;
    check(&settings, "old-clip").unwrap();

    settings.train.epochs_per_batch = 2;
    check(&settings, "old-clip").unwrap();
    settings.algo.correction.level = CorrectionLevel::Token;
    settings.train.async_queue_size = 1;
    check(&settings, "old-clip").unwrap();
    let error = check(&settings, "ppo-clip").unwrap_err();
    assert!(matches!(&error, TrainError::CorrectsTwice { loss } if loss == "ppo-clip"), "{error}");
}

/// A plugin knows them too, whatever `algo.importance` is: with it a run ends where one with the host's loss of them does.
#[test]
fn a_plugin_is_given_the_old_policy_in_every_step_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = far(&model(dir.path()));
    settings.optim.lr = 1e-3;
    let plugin = trained(&settings, "old-clip");
    settings.algo.importance = Importance::Old;
    let native = trained(&settings, "ppo");
    assert!(apart(&plugin, &native) < 1e-6, "{}", apart(&plugin, &native));
}
