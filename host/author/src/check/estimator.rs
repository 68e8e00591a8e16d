//! Estimators: the order of rollouts and groups does not matter, and numbers stay finite.

use super::{Findings, answer, brief};
use crate::batch::tokens_by_rollout;
use crate::failure;
use futures_util::future::join_all;
use molt_core::seed::permutation;
use molt_sandbox::{Estimate, Estimator, EstimatorBatch, Failure, Parameter, Traits};

/// How far advantages may differ when rollouts change places: sums are rounded in another order.
const TOLERANCE: f64 = 1e-6;

/// One rollout of a made-up batch.
#[derive(Debug, Clone)]
struct Rollout {
    group: u32,
    reward: f32,
    /// Action tokens of each segment: turn, kl and value.
    segments: Vec<Vec<(u32, f32, f32)>>,
    turn_rewards: Vec<f32>,
}

pub(super) async fn check(estimator: &Estimator, findings: &mut Findings) {
    let traits = match estimator.traits().await {
        Ok(traits) => traits,
        Err(problem) => {
            let help = failure::help(&problem, "let it return what it needs");
            return findings.failed("describe", failure::told(&problem, estimator.info()), &help);
        }
    };
    let again = estimator.traits().await;
    if again.as_ref() == Ok(&traits) {
        findings.ok("describe", needs(&traits));
    } else {
        findings.failed(
            "describe",
            "it says something else the second time",
            "return the same traits always",
        );
    }

    let batches = batches(&traits);
    let mut alone = Vec::new();
    for (_, rollouts) in &batches {
        alone.push(estimator.estimate(&flat(rollouts, &traits)).await);
    }
    let named = batches.iter().map(|(name, _)| *name);
    let failed =
        named.clone().zip(&alone).filter_map(|(name, estimate)| Some((name, estimate.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    let good =
        format!("{} batches, of equal, extreme and no rewards, without tokens, and long ones", batches.len());
    let help = "an estimate is due for every batch that a run may make";
    if !findings.calls("finiteness", good, (&failed, batches.len()), (estimator.info(), help)) {
        return;
    }

    let mut at_bounds = Vec::new();
    if let Some((_, rollouts)) = batches.first() {
        for (place, parameter) in traits.parameters.iter().enumerate() {
            for bound in parameter.bounds() {
                let mut batch = flat(rollouts, &traits);
                batch.parameters.iter_mut().skip(place).take(1).for_each(|value| *value = bound);
                if let Err(problem) = estimator.estimate(&batch).await {
                    let name = &parameter.name;
                    at_bounds
                        .push(format!("{name} = {bound}: {}", failure::told(&problem, estimator.info())));
                }
            }
        }
    }
    if !traits.parameters.is_empty() {
        let help = "declare only what a run may set; an estimate is due for each such value";
        findings.all("parameters", "estimates at the bounds of each", at_bounds, help);
    }

    let mut problems = Vec::new();
    for ((name, rollouts), before) in batches.iter().zip(&alone) {
        let again = estimator.estimate(&flat(rollouts, &traits)).await;
        if bits(before) != bits(&again) {
            problems.push(format!("{name}: two estimates differ"));
        }
    }
    findings.all(
        "determinism",
        "the same batch gives the same bits",
        problems,
        "let nothing but the batch decide: no time, no randomness, no order of a hash table",
    );

    let flats: Vec<EstimatorBatch> = batches.iter().map(|(_, rollouts)| flat(rollouts, &traits)).collect();
    let together = join_all(flats.iter().rev().map(|batch| estimator.estimate(batch))).await;
    let pairs = named.zip(&alone).zip(together.iter().rev());
    let problems = pairs.filter(|((_, before), after)| bits(before) != bits(after));
    findings.all(
        "independence",
        "estimates at the same time do not change each other",
        problems.map(|((name, _), _)| format!("{name}: the estimate differs beside others")).collect(),
        "keep nothing outside of the call",
    );

    let mut problems = Vec::new();
    for ((name, rollouts), before) in batches.iter().zip(&alone) {
        let Ok(before) = before else { continue };
        problems.extend(invariance(estimator, &traits, name, rollouts, before).await);
    }
    findings.all(
        "permutation",
        "rollouts and groups that change places take their advantages along",
        problems,
        "let an advantage depend on rewards and groups, not on where they are in the batch",
    );
}

fn needs(traits: &Traits) -> String {
    let needs =
        [(traits.needs_group, "a group to compare with"), (traits.needs_values, "values of a critic")];
    let needs: Vec<&str> = needs.iter().filter(|(holds, _)| *holds).map(|(_, what)| *what).collect();
    let needs = if needs.is_empty() { "nothing".to_owned() } else { needs.join(" and ") };
    let parameters = match traits.parameters.len() {
        0 => "no parameter".to_owned(),
        1 => "1 parameter".to_owned(),
        count => format!("{count} parameters"),
    };
    format!("needs {needs}; the host whitens: {}; {parameters}", if traits.whiten { "yes" } else { "no" })
}

/// Estimates the batch in another order of rollouts, and with other numbers of groups.
async fn invariance(
    estimator: &Estimator,
    traits: &Traits,
    name: &str,
    rollouts: &[Rollout],
    before: &Estimate,
) -> Option<String> {
    let groups = rollouts.iter().map(|rollout| rollout.group + 1).max().unwrap_or(0);
    for seed in 0..3 {
        let order = permutation(seed, rollouts.len());
        let names = permutation(seed + 100, groups as usize);
        let moved: Vec<Rollout> = order
            .iter()
            .filter_map(|&from| rollouts.get(from))
            .map(|rollout| {
                let group = names.get(rollout.group as usize).map_or(0, |&group| group as u32);
                Rollout { group, ..rollout.clone() }
            })
            .collect();
        let batch = flat(&moved, traits);
        let after = match estimator.estimate(&batch).await {
            Ok(after) => after,
            Err(problem) => {
                return Some(format!(
                    "{name}, in another order: {}",
                    failure::told(&problem, estimator.info())
                ));
            }
        };
        let (here, there) = (tokens_by_rollout(&flat(rollouts, traits)), tokens_by_rollout(&batch));
        let largest = before.advantages.iter().fold(0.0_f64, |largest, a| largest.max(f64::from(a.abs())));
        for (to, &from) in order.iter().enumerate() {
            let pairs = here.get(from).into_iter().flatten().zip(there.get(to).into_iter().flatten());
            for (&one, &other) in pairs {
                let (Some(&one), Some(&other)) = (before.advantages.get(one), after.advantages.get(other))
                else {
                    continue;
                };
                // Small differences of large rewards are rounded as large ones are.
                if (f64::from(one) - f64::from(other)).abs() > TOLERANCE * largest.max(1.0) {
                    return Some(brief(&format!(
                        "{name}: the advantage of a rollout is {one} at place {from} and {other} at place {to}"
                    )));
                }
            }
        }
    }
    None
}

/// An estimate, so that two are equal if they are bit for bit.
fn bits(found: &Result<Estimate, Failure>) -> Result<[Vec<u32>; 2], String> {
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect();
    match found {
        Ok(estimate) => Ok([bits(&estimate.advantages), bits(&estimate.returns)]),
        Err(_) => Err(answer(found)),
    }
}

/// Made-up batches that an estimator with these traits may get.
fn batches(traits: &Traits) -> Vec<(&'static str, Vec<Rollout>)> {
    let varied = |i: usize| ((i * 7919) % 13) as f32 / 4.0 - 1.0;
    let mut batches = vec![
        ("four groups of four", make(4, 4, &varied)),
        ("sixteen groups of two", make(16, 2, &varied)),
        ("rewards of 0 and 1", make(4, 8, &|i| (i % 3 == 0).into())),
        ("equal rewards", make(3, 4, &|_| 0.25)),
        ("rewards of 0", make(3, 4, &|_| 0.0)),
        ("one rollout with another reward", make(2, 8, &|i| (i == 3).into())),
        ("rewards that differ in the last bit", make(2, 4, &|i| if i % 2 == 0 { 1.0 } else { 1.000_000_1 })),
        ("rewards of 1e30 and -1e30", make(2, 4, &|i| if i % 2 == 0 { 1e30 } else { -1e30 })),
        ("tiny rewards", make(2, 4, &|i| i as f32 * 1e-30)),
    ];
    let mut silent = make(2, 4, &varied);
    silent.iter_mut().for_each(|rollout| rollout.segments = vec![vec![]]);
    batches.push(("no action token at all", silent));
    let mut uneven = make(3, 4, &varied);
    for (at, rollout) in uneven.iter_mut().enumerate() {
        rollout.segments.insert(0, vec![]);
        if at % 3 == 0 {
            rollout.segments.clear();
        }
    }
    batches.push(("segments without tokens and rollouts without segments", uneven));
    let mut long = make(2, 2, &varied);
    for rollout in &mut long {
        rollout.segments = vec![(0..5000).map(|token| (token / 50, 0.001, 0.5)).collect()];
        rollout.turn_rewards = vec![rollout.reward / 100.0; 100];
    }
    batches.push(("a hundred turns of fifty tokens", long));
    let mut different = make(3, 4, &varied);
    different.truncate(10);
    batches.push(("groups of different sizes", different));
    if !traits.needs_group {
        batches.push(("groups of one", make(6, 1, &varied)));
    }
    batches
}

/// Rollouts of two segments; groups take turns, so that none is in one piece.
fn make(groups: u32, of: usize, reward: &dyn Fn(usize) -> f32) -> Vec<Rollout> {
    let one = |at: usize| {
        let token = |turn: u32, token: usize| {
            let wave = ((at * 31 + token * 17) % 23) as f32;
            (turn, wave / 100.0 - 0.1, wave / 23.0)
        };
        let segments = vec![
            (0..1 + at % 3).map(|i| token(0, i)).collect(),
            (0..2 + at % 2).map(|i| token(1, i + 10)).collect(),
        ];
        let reward = reward(at);
        Rollout { group: at as u32 % groups, reward, segments, turn_rewards: vec![0.0, reward] }
    };
    (0..groups as usize * of).map(one).collect()
}

/// The arrays of the contract.
fn flat(rollouts: &[Rollout], traits: &Traits) -> EstimatorBatch {
    let mut batch = EstimatorBatch {
        segment_offsets: vec![0],
        turn_offsets: vec![0],
        kl_coef: 0.01,
        parameters: traits.parameters.iter().map(Parameter::default_value).collect(),
        ..EstimatorBatch::default()
    };
    for (at, rollout) in rollouts.iter().enumerate() {
        batch.rewards.push(rollout.reward);
        batch.groups.push(rollout.group);
        batch.turn_rewards.extend(&rollout.turn_rewards);
        batch.turn_offsets.push(batch.turn_rewards.len() as u32);
        for segment in &rollout.segments {
            batch.segment_rollouts.push(at as u32);
            for (turn, kl, value) in segment {
                batch.turns.push(*turn);
                batch.kl.push(*kl);
                if traits.needs_values {
                    batch.values.push(*value);
                }
            }
            batch.segment_offsets.push(batch.turns.len() as u32);
        }
    }
    batch
}
