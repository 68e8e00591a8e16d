//! Calls between host and guest: a puppet calls what the script says, with what the script says, and returns it.
//!
//! The first byte chooses the kind of plugin, the rest is the script. Whatever it is, the host answers with
//! a checked value or a failure in one plain sentence, and twice the same.
#![no_main]

mod world;

use libfuzzer_sys::fuzz_target;
use molt_core::ids::{GroupId, RolloutId};
use molt_sandbox::{Action, Call, EstimatorBatch, Failure, Transition, Verdict};
use std::sync::LazyLock;
use world::{World, sample, task};

static WORLD: LazyLock<World> = LazyLock::new(World::new);

const CALL: Call = Call { rollout: Some(RolloutId { group: GroupId(3), member: 1 }), seed: 7 };

fuzz_target!(|input: &[u8]| {
    let Some((kind, script)) = input.split_first() else { return };
    // Every byte as a character, since a guest is given text.
    let script: String = script.iter().take(4000).map(|&byte| char::from(byte)).collect();
    WORLD.runtime.block_on(async {
        match kind % 4 {
            0 => check(&reward(&script).await),
            1 => twice(group(&script).await, group(&script).await),
            2 => twice(episode(&script).await, episode(&script).await),
            _ => twice(estimate(&script).await, estimate(&script).await),
        }
    });
});

async fn reward(script: &str) -> Result<Vec<Verdict>, Failure> {
    let verdict = WORLD.reward.score(CALL, &sample(script, &WORLD.authority)).await?;
    check_verdict(&verdict);
    Ok(vec![verdict])
}

async fn group(script: &str) -> Result<Vec<Verdict>, Failure> {
    let samples = [sample(script, ""), sample("", "")];
    let verdicts = WORLD.group.score_group(CALL, &samples).await?;
    assert_eq!(verdicts.len(), 2);
    verdicts.iter().for_each(check_verdict);
    Ok(verdicts)
}

/// The first half of the script is for the constructor and the reset, the second for each of three steps.
async fn episode(script: &str) -> Result<Vec<Transition>, Failure> {
    let half = script.char_indices().nth(script.chars().count() / 2).map_or(0, |(at, _)| at);
    let (first, second) = script.split_at(half);
    let mut task = task("");
    task.id = first.to_owned();
    let mut episode = WORLD.environment.open(CALL, &task).await?;
    episode.reset().await?;
    let mut transitions = Vec::new();
    for _ in 0..3 {
        let action = Action { text: second.to_owned(), tool_calls: vec![], truncated: false };
        let transition = episode.step(&action).await?;
        assert!(transition.reward.is_none_or(f64::is_finite));
        check_metrics(&transition.metrics);
        transitions.push(transition);
    }
    Ok(transitions)
}

async fn estimate(script: &str) -> Result<Vec<f32>, Failure> {
    let turns: Vec<u32> = script.chars().map(u32::from).collect();
    let tokens = turns.len() as u32;
    let batch = EstimatorBatch {
        rewards: vec![1.0, 0.5],
        groups: vec![0, 0],
        segment_rollouts: vec![0, 1],
        segment_offsets: vec![0, tokens / 2, tokens],
        turns,
        // Of every turn that a byte can name.
        turn_rewards: [vec![1.0], vec![0.0; 255], vec![0.5], vec![0.0; 255]].concat(),
        turn_offsets: vec![0, 256, 512],
        ..EstimatorBatch::default()
    };
    let estimate = WORLD.estimator.estimate(&batch).await?;
    assert_eq!((estimate.advantages.len(), estimate.returns.len()), (tokens as usize, tokens as usize));
    let all: Vec<f32> = estimate.advantages.into_iter().chain(estimate.returns).collect();
    assert!(all.iter().all(|number| number.is_finite()));
    Ok(all)
}

fn check_verdict(verdict: &Verdict) {
    match verdict {
        Verdict::Scored { reward, metrics, .. } => {
            assert!(reward.is_finite());
            check_metrics(metrics);
        }
        Verdict::Invalid(reason) | Verdict::Infra(reason) => {
            assert!(reason.chars().count() <= 400 && !reason.chars().any(char::is_control), "{reason:?}");
        }
    }
}

fn check_metrics(metrics: &[(String, f64)]) {
    assert!(metrics.len() <= 64);
    for (name, value) in metrics {
        assert!(value.is_finite() && !name.chars().any(char::is_control), "{name:?} {value}");
    }
}

fn check<T>(answer: &Result<T, Failure>) {
    if let Err(failure) = answer {
        let sentence = failure.to_string();
        assert!(sentence.starts_with("plugin `puppet-"), "{sentence}");
        assert!(sentence.len() < 8192 && !sentence.chars().any(char::is_control), "{sentence:?}");
        // These two would be the host's own fault.
        assert!(!["bad-call", "sandbox-full"].contains(&failure.label()), "{sentence}");
    }
}

/// The same script does the same, unless a clock stopped it.
fn twice<T: PartialEq + std::fmt::Debug>(first: Result<T, Failure>, second: Result<T, Failure>) {
    check(&first);
    let clocks = ["cpu-limit", "time-limit", "host-calls-limit"];
    let stopped = [&first, &second]
        .iter()
        .any(|answer| answer.as_ref().is_err_and(|failure| clocks.contains(&failure.label())));
    if !stopped {
        assert_eq!(format!("{first:?}"), format!("{second:?}"), "the same script, another answer");
    }
}
