//! The shipped estimators on batches as they come: with failures, without spread, with rewards that are no numbers.

use crate::parts::*;
use molt_core::chat::Task;
use molt_core::ids::{GroupId, RolloutId, WeightVersion};
use molt_core::outcome::{DropReason, Dropped, Group, Outcome};
use molt_core::settings::Algo;
use molt_core::trajectory::{Reward, Sampled, Segment, Trajectory};
use molt_sandbox::{Cause, Failure};
use molt_trainer::advantage::{advantages, check_estimator};
use std::collections::BTreeMap;

/// Those that need neither a critic nor a teacher.
const SHIPPED: [&str; 8] =
    ["dr-grpo", "grpo", "maxrl", "reinforce", "reinforce-baseline", "rloo", "rloo-length", "turn-credit"];

fn task() -> Task {
    Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() }
}

/// A rollout of one turn of three tokens in each of `segments` segments; all that it earned, it earned last.
fn finished(rollout: RolloutId, value: f64, segments: u32) -> Outcome {
    let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(0) };
    let segment = |turn| {
        let mut segment = Segment::new(vec![1]);
        segment.push_turn(turn, &[sampled; 3]);
        segment
    };
    let mut turn_rewards = vec![0.0; segments as usize];
    turn_rewards[segments as usize - 1] = value;
    Outcome::Finished(Box::new(Trajectory {
        rollout,
        task: task(),
        segments: (0..segments).map(segment).collect(),
        messages: Vec::new(),
        completion: String::new(),
        truncated: true,
        reward: Reward::Scored { value, solved: false },
        turn_rewards,
        metrics: BTreeMap::new(),
    }))
}

fn failed(rollout: RolloutId) -> Outcome {
    Outcome::Dropped(Dropped { rollout, reason: DropReason::Plugin("trap".into()), detail: String::new() })
}

/// Rewards of the members; None for one that failed. Members have one and two segments in turn.
fn group(id: u64, rewards: &[Option<f64>]) -> Group {
    let outcome = |(member, reward): (u32, &Option<f64>)| {
        let rollout = RolloutId { group: GroupId(id), member };
        reward.map_or_else(|| failed(rollout), |value| finished(rollout, value, 1 + member % 2))
    };
    Group { id: GroupId(id), task: task(), outcomes: (0..).zip(rewards).map(outcome).collect() }
}

/// The advantage of every segment's first token.
fn credit(name: &str, groups: &[Group]) -> Result<Vec<f32>, Failure> {
    let (runtime, estimator) = (runtime(), estimator(name));
    let traits = runtime.block_on(estimator.traits()).unwrap();
    let algo = Algo { estimator: name.into(), ..Algo::default() };
    let parameters = check_estimator(&algo, &traits, 4).unwrap();
    let rows = runtime.block_on(advantages(&estimator, &traits, &parameters, groups, 0.0))?;
    assert!(rows.iter().all(|row| row.advantages.len() == 3 && row.advantages.iter().all(|a| a.is_finite())));
    Ok(rows.iter().map(|row| row.advantages[0]).collect())
}

#[test]
fn members_that_failed_are_in_no_mean() {
    let whole = [group(0, &[Some(1.0), Some(0.0)]), group(1, &[Some(0.25), Some(0.5)])];
    // The same rollouts, with failures beside them, and a group of which nothing is left.
    let torn = [
        group(0, &[Some(1.0), Some(0.0), None, None]),
        group(5, &[None, None]),
        group(1, &[Some(0.25), Some(0.5), None]),
    ];
    for name in SHIPPED {
        let found = credit(name, &torn).unwrap();
        assert_eq!(found.len(), 6, "{name}: one row for each segment");
        assert_eq!(found, credit(name, &whole).unwrap(), "{name}");
        assert!(found.iter().any(|&advantage| advantage != 0.0), "{name}");
    }
}

#[test]
fn who_is_left_alone_has_nothing_to_compare_with() {
    let alone = [group(0, &[None, Some(0.75), None])];
    for name in SHIPPED {
        // Whitened against itself, it is 0 as well.
        let expected = if name.starts_with("rloo") { [0.75; 2] } else { [0.0; 2] };
        assert_eq!(credit(name, &alone).unwrap(), expected, "{name}");
    }
}

#[test]
fn a_batch_of_truncated_rollouts_teaches_nothing_and_is_no_error() {
    let batch = [group(0, &[Some(0.0); 4]), group(1, &[Some(0.0); 4])];
    for name in SHIPPED {
        assert_eq!(credit(name, &batch).unwrap(), [0.0; 12], "{name}");
    }
    for name in SHIPPED {
        assert!(credit(name, &[group(0, &[None, None])]).unwrap().is_empty(), "{name}");
        assert!(credit(name, &[]).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_reward_that_is_no_number_is_refused_by_name() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
        for name in SHIPPED {
            let failure = credit(name, &[group(0, &[Some(1.0), Some(value)])]).unwrap_err();
            assert!(
                matches!(&failure.cause, Cause::BadCall(why) if why.contains("finite")),
                "{name}: {failure}"
            );
        }
    }
}

#[test]
fn rewards_as_large_as_32_bits_hold_are_answered_or_refused() {
    let large = f64::from(f32::MAX);
    for name in SHIPPED {
        let batch = [group(0, &[Some(large), Some(-large), Some(-large), Some(-large)])];
        if let Err(failure) = credit(name, &batch) {
            assert!(
                matches!(&failure.cause, Cause::Reported(why) if why.contains("too large")),
                "{name}: {failure}"
            );
        }
    }
}
