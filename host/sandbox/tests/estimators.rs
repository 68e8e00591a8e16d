//! The shipped estimators through the boundary: what they say of themselves, and a thousand rollouts against the same
//! function compiled natively.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, library, limits};
use molt_core::seed::permutation;
use molt_plugin::estimator::{self as native, Batch, Credit, Estimates, Estimator};
use molt_sandbox::{Estimate, EstimatorBatch, Parameter, ParameterKind, Traits};

type Describe = fn() -> native::Traits;
type Estimating = fn(Batch) -> Result<Estimates, String>;

fn shipped() -> [(&'static str, Describe, Estimating); 10] {
    fn of<E: Estimator>(name: &'static str) -> (&'static str, Describe, Estimating) {
        (name, E::describe, E::estimate)
    }
    [
        of::<dr_grpo::DrGrpo>("dr-grpo"),
        of::<gae::Gae>("gae"),
        of::<grpo::Grpo>("grpo"),
        of::<maxrl::MaxRl>("maxrl"),
        of::<on_policy_distill::OnPolicyDistill>("on-policy-distill"),
        of::<reinforce::Reinforce>("reinforce"),
        of::<reinforce_baseline::ReinforceBaseline>("reinforce-baseline"),
        of::<rloo::Rloo>("rloo"),
        of::<rloo_length::RlooLength>("rloo-length"),
        of::<turn_credit::TurnCredit>("turn-credit"),
    ]
}

/// The same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }

    /// From −1 to 1.
    fn number(&mut self) -> f32 {
        self.below(2001) as f32 / 1000.0 - 1.0
    }
}

/// One of a batch's rollouts.
#[derive(Clone)]
struct Rollout {
    group: u32,
    /// Turn, KL and value of the action tokens of each segment.
    segments: Vec<Vec<(u32, f32, f32)>>,
    turn_rewards: Vec<f32>,
}

/// Groups of 1 to 16 rollouts of 0 to 3 segments of 0 to 9 action tokens; some groups have one reward for all.
fn rollouts(count: usize, random: &mut Random) -> Vec<Rollout> {
    let mut rollouts = Vec::new();
    for group in 0.. {
        let equal = random.below(4) == 0;
        for _ in 0..=random.below(16) {
            let turns = 1 + random.below(3);
            let token = |random: &mut Random| (random.below(turns), random.number() / 10.0, random.number());
            let segment = |random: &mut Random| (0..random.below(10)).map(|_| token(random)).collect();
            let segments = (0..random.below(4)).map(|_| segment(random)).collect();
            let earned = |random: &mut Random| if equal { 0.1 } else { random.number() };
            let turn_rewards =
                if equal { vec![0.1; 3] } else { (0..turns).map(|_| earned(random)).collect() };
            rollouts.push(Rollout { group, segments, turn_rewards });
            if rollouts.len() == count {
                return rollouts;
            }
        }
    }
    rollouts
}

fn flat(rollouts: &[Rollout], with_values: bool, parameters: &[f64]) -> EstimatorBatch {
    let mut batch = EstimatorBatch {
        segment_offsets: vec![0],
        turn_offsets: vec![0],
        kl_coef: 0.1,
        parameters: parameters.to_vec(),
        ..EstimatorBatch::default()
    };
    for (at, rollout) in rollouts.iter().enumerate() {
        batch.rewards.push(rollout.turn_rewards.iter().sum());
        batch.groups.push(rollout.group);
        batch.turn_rewards.extend(&rollout.turn_rewards);
        batch.turn_offsets.push(batch.turn_rewards.len() as u32);
        for segment in &rollout.segments {
            batch.segment_rollouts.push(at as u32);
            batch.turns.extend(segment.iter().map(|(turn, ..)| turn));
            batch.kl.extend(segment.iter().map(|(_, kl, _)| kl));
            if with_values {
                batch.values.extend(segment.iter().map(|(.., value)| value));
            }
            batch.segment_offsets.push(batch.turns.len() as u32);
        }
    }
    batch
}

fn own(batch: &EstimatorBatch) -> Batch {
    let batch = batch.clone();
    Batch {
        rewards: batch.rewards,
        groups: batch.groups,
        segment_rollouts: batch.segment_rollouts,
        segment_offsets: batch.segment_offsets,
        turns: batch.turns,
        turn_rewards: batch.turn_rewards,
        turn_offsets: batch.turn_offsets,
        kl: batch.kl,
        values: batch.values,
        kl_coef: batch.kl_coef,
        parameters: batch.parameters,
    }
}

/// One number per action token.
fn per_token(batch: &Batch, credit: &Credit) -> Vec<f32> {
    match credit {
        Credit::PerToken(tokens) => tokens.clone(),
        Credit::PerRollout(rollouts) => batch
            .segments()
            .flat_map(|segment| vec![rollouts[segment.rollout]; segment.tokens.len()])
            .collect(),
    }
}

/// Powers are rounded in another way natively.
fn close(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bound = 1e-6 * expected.abs().max(1.0);
        assert!((found - expected).abs() <= bound, "{name}, token {token}: {found} is not {expected}");
    }
}

/// The default of each parameter, and something else for each.
fn settings(traits: &Traits) -> [Vec<f64>; 2] {
    let default = traits.parameters.iter().map(Parameter::default_value);
    let other = traits.parameters.iter().map(|parameter| match parameter.kind {
        ParameterKind::Boolean { default } => f64::from(u8::from(!default)),
        _ => parameter.bounds().iter().sum::<f64>() / 2.0,
    });
    [default.collect(), other.collect()]
}

#[tokio::test]
async fn a_thousand_rollouts_are_estimated_as_natively() {
    let rollouts = rollouts(1000, &mut Random(7));
    for (name, describe, estimate) in shipped() {
        let plugin = SANDBOX.estimator(&library(), name, limits()).unwrap();
        let traits = plugin.traits().await.unwrap();
        let said = describe();
        assert_eq!(
            (traits.needs_group, traits.needs_values, traits.uses_kl, traits.whiten, traits.parameters.len()),
            (said.needs_group, said.needs_values, said.uses_kl, said.whiten, said.parameters.len()),
            "{name}"
        );
        for parameters in settings(&traits) {
            let batch = flat(&rollouts, traits.needs_values, &parameters);
            let Estimate { advantages, returns } = plugin.estimate(&batch).await.unwrap();
            let twin = own(&batch);
            let expected = estimate(twin.clone()).unwrap();
            close(name, &advantages, &per_token(&twin, &expected.advantages));
            close(name, &returns, &per_token(&twin, &expected.returns));
            assert!(advantages.iter().any(|&advantage| advantage != 0.0), "{name} teaches nothing");
        }
    }
}

#[tokio::test]
async fn rollouts_in_another_order_keep_their_advantages() {
    let rollouts = rollouts(200, &mut Random(11));
    let order = permutation(3, rollouts.len());
    let moved: Vec<Rollout> = order.iter().map(|&from| rollouts[from].clone()).collect();
    for (name, ..) in shipped() {
        let plugin = SANDBOX.estimator(&library(), name, limits()).unwrap();
        let traits = plugin.traits().await.unwrap();
        let [parameters, _] = settings(&traits);
        let [before, after] = [&rollouts, &moved].map(|all| flat(all, traits.needs_values, &parameters));
        let (here, there) = (own(&before).tokens_by_rollout(), own(&after).tokens_by_rollout());
        let before = plugin.estimate(&before).await.unwrap().advantages;
        let after = plugin.estimate(&after).await.unwrap().advantages;
        for (to, &from) in order.iter().enumerate() {
            let of =
                |tokens: &[usize], all: &[f32]| tokens.iter().map(|&token| all[token]).collect::<Vec<f32>>();
            close(name, &of(&there[to], &after), &of(&here[from], &before));
        }
    }
}

#[tokio::test]
async fn a_group_of_equal_rewards_has_no_advantage_at_all() {
    let mut rollouts = rollouts(60, &mut Random(5));
    for rollout in &mut rollouts {
        rollout.turn_rewards = vec![0.1; 3];
    }
    // Groups of one have no baseline under leave-one-out.
    let alone = |group: u32| {
        rollouts.iter().filter(|r| r.group == group && !r.segments.concat().is_empty()).count() < 2
    };
    for name in ["dr-grpo", "grpo", "maxrl", "reinforce-baseline", "rloo", "rloo-length", "turn-credit"] {
        let plugin = SANDBOX.estimator(&library(), name, limits()).unwrap();
        let [parameters, _] = settings(&plugin.traits().await.unwrap());
        let batch = flat(&rollouts, false, &parameters);
        let estimate = plugin.estimate(&batch).await.unwrap();
        for (tokens, rollout) in own(&batch).tokens_by_rollout().iter().zip(&rollouts) {
            if !(name.starts_with("rloo") && alone(rollout.group)) {
                assert!(tokens.iter().all(|&token| estimate.advantages[token] == 0.0), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn names_with_underscores_lead_to_the_plugins() {
    for name in ["reinforce_baseline", "dr_grpo", "on_policy_distill", "turn_credit", "rloo_length"] {
        let error = SANDBOX.estimator(&library(), name, limits()).err().unwrap().to_string();
        let right = format!("`{}`", name.replace('_', "-"));
        assert!(error.contains(&right), "{error}");
    }
}
