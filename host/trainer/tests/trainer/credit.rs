//! The shipped estimators on batches as they come: with failures, without spread, with rewards that are no numbers.

use crate::parts::*;
use molt_core::chat::Task;
use molt_core::ids::{GroupId, RolloutId, WeightVersion};
use molt_core::outcome::{DropReason, Dropped, Group, Outcome};
use molt_core::settings::{Algo, TrainSettings};
use molt_core::trajectory::{Reward, Sampled, Segment, Trajectory};
use molt_sandbox::{Cause, Estimator, Failure, Parameter, ParameterKind, Traits};
use molt_trainer::advantage::{advantages, check_estimator};
use molt_trainer::beside::Said;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Those that need neither a critic nor a teacher.
const SHIPPED: [&str; 8] =
    ["dr-grpo", "grpo", "maxrl", "reinforce", "reinforce-baseline", "rloo", "rloo-length", "turn-credit"];

fn task() -> Task {
    Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() }
}

/// All of them, with what they say of themselves.
static ALL: LazyLock<Vec<(&str, Estimator, Traits)>> = LazyLock::new(|| {
    let runtime = runtime();
    let of = |name| {
        let estimator = estimator(name);
        let traits = runtime.block_on(estimator.traits()).unwrap();
        (name, estimator, traits)
    };
    SHIPPED.into_iter().chain(["gae", "on-policy-distill"]).map(of).collect()
});

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
        truncated: false,
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
    let parameters = check_estimator(&TrainSettings { algo, ..TrainSettings::default() }, &traits).unwrap();
    let said = Said::default();
    let asked = advantages(&estimator, &traits, &parameters, (groups, &said), 0.0);
    let (rows, _) = runtime.block_on(asked)?;
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
fn a_batch_of_equal_rewards_teaches_nothing_and_an_empty_one_is_no_error() {
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

/// One of a batch's rollouts: what each of its turns earned, with its number of tokens; where a second segment begins;
/// whether it could be scored.
type Played = (Vec<(f64, usize)>, usize, bool);

fn batches() -> impl Strategy<Value = Vec<Vec<Played>>> {
    // Few different rewards, so that groups without any spread and turns that cancel out are among them.
    let earned = prop_oneof![Just(0.0), Just(5.0), Just(-5.0), -1.0..1.0];
    let turns = prop::collection::vec((earned, 1_usize..4), 1..4);
    let rollout = (turns, 0_usize..4, prop::bool::weighted(0.8));
    prop::collection::vec(prop::collection::vec(rollout, 1..6), 1..4)
}

/// With so many tokens of the environment before every turn but a segment's first, and at the end of a segment.
fn batch(played: &[Vec<Played>], gap: usize) -> Vec<Group> {
    let rollout = |group: u64, member: u32, (turns, cut, is_scored): &Played| {
        let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(0) };
        let mut segments = vec![Segment::new(vec![1])];
        for (turn, (_, tokens)) in turns.iter().enumerate() {
            if turn == *cut && turn > 0 {
                segments.push(Segment::new(vec![1]));
            }
            let segment = segments.last_mut().unwrap();
            segment.push_turn(turn as u32, &vec![sampled; *tokens]);
            segment.push_context(&vec![3; gap * (turn + 1)]);
        }
        let turn_rewards: Vec<f64> = turns.iter().map(|(earned, _)| *earned).collect();
        let value = turn_rewards.iter().sum();
        Outcome::Finished(Box::new(Trajectory {
            rollout: RolloutId { group: GroupId(group), member },
            task: task(),
            segments,
            messages: Vec::new(),
            completion: String::new(),
            truncated: false,
            reward: match is_scored {
                true => Reward::Scored { value, solved: false },
                false => Reward::Invalid { reason: String::new() },
            },
            turn_rewards,
            metrics: BTreeMap::new(),
        }))
    };
    let group = |(id, rollouts): (u64, &Vec<Played>)| Group {
        id: GroupId(id),
        task: task(),
        outcomes: (0..).zip(rollouts).map(|(member, played)| rollout(id, member, played)).collect(),
    };
    (0..).zip(played).map(group).collect()
}

/// The default of each parameter, and something else for each.
fn parameters(traits: &Traits) -> [Vec<f64>; 2] {
    let all = &traits.parameters;
    let other = |parameter: &Parameter| match parameter.kind {
        ParameterKind::Boolean { default } => f64::from(u8::from(!default)),
        _ => parameter.bounds().iter().sum::<f64>() / 2.0,
    };
    [all.iter().map(Parameter::default_value).collect(), all.iter().map(other).collect()]
}

/// A divergence and a value for each of so many tokens.
fn noise(tokens: usize) -> Said {
    let of = |salt| -> Vec<f32> { (0..tokens).map(|n| ((n * salt) % 13) as f32 / 13.0 - 0.5).collect() };
    let mut said = Said::default();
    (said.kl, said.kl_coef, said.values) = (of(5), 0.1, of(7));
    said
}

proptest! {
    #![proptest_config(cases(60))]

    /// What an environment says between and after turns is no token of any estimator.
    #[test]
    fn observations_change_no_advantage(played in batches(), gap in 1_usize..9) {
        let [without, with] = [batch(&played, 0), batch(&played, gap)];
        let tokens = without.iter().flat_map(Group::finished).map(Trajectory::action_tokens).sum();
        let (said, runtime) = (noise(tokens), runtime());
        for (name, estimator, traits) in ALL.iter() {
            for parameters in parameters(traits) {
                let of = |groups: &[Group]| {
                    let asked = advantages(estimator, traits, &parameters, (groups, &said), 0.0);
                    let (rows, returns) = runtime.block_on(asked).unwrap();
                    (rows.into_iter().map(|row| row.advantages).collect::<Vec<_>>(), returns)
                };
                prop_assert_eq!(of(&with), of(&without), "{}", name);
            }
        }
    }

    /// A scored rollout that could not be scored after all gains nothing by that, whatever estimator compares it, and
    /// whatever it and the others earned on their way.
    #[test]
    fn an_output_that_cannot_be_scored_gains_nothing(
        played in batches(), which: prop::sample::Index, lowest in prop_oneof![Just(0.0), Just(-1.0)],
    ) {
        let scored = |played: &[Vec<Played>]| -> Vec<(usize, usize)> {
            let places = played.iter().enumerate();
            let places = places.flat_map(|(group, all)| (0..all.len()).map(move |member| (group, member)));
            places.filter(|&(group, member)| played[group][member].2).collect()
        };
        let places = scored(&played);
        prop_assume!(!places.is_empty());
        let (group, member) = places[which.index(places.len())];
        let mut after = played.clone();
        after[group][member].2 = false;
        let [before, after] = [batch(&played, 2), batch(&after, 2)];
        let tokens: usize = before.iter().flat_map(Group::finished).map(Trajectory::action_tokens).sum();
        let first: usize = before[..group].iter().flat_map(Group::finished).map(Trajectory::action_tokens).sum();
        let first =
            first + before[group].finished().take(member).map(Trajectory::action_tokens).sum::<usize>();
        let own = first..first + before[group].finished().nth(member).unwrap().action_tokens();
        let said = noise(tokens);
        let runtime = runtime();
        for (name, estimator, traits) in ALL.iter() {
            // As the estimator gives them: whitening is the host's, and scales all of them.
            let plain = Traits { whiten: false, ..traits.clone() };
            for parameters in parameters(traits) {
                let of = |groups: &[Group]| -> Vec<f32> {
                    let asked = advantages(estimator, &plain, &parameters, (groups, &said), lowest);
                    runtime.block_on(asked).unwrap().0.into_iter().flat_map(|row| row.advantages).collect()
                };
                for (was, is) in of(&before)[own.clone()].iter().zip(&of(&after)[own.clone()]) {
                    let bound = was + 1e-5 * was.abs().max(1.0);
                    prop_assert!(*is <= bound, "{name} {parameters:?}: {was} became {is}");
                }
            }
        }
    }
}
