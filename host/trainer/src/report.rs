//! What a training step and a run tell people: metrics, the progress line, trajectories, the summary.
//! Every mean is a sum over a named population, divided by its size; an empty population has no mean.

use crate::advantage::finished;
use crate::loss::correction::Correction;
use crate::optim::Update;
use crate::populations;
use crate::shape::Shaped;
use crate::step::{PolicyRow, PolicySums};
use molt_core::ids::WeightVersion;
use molt_core::outcome::{Dropped, Group};
use molt_core::settings::CorrectionMode;
use molt_core::trajectory::{Reward, Trajectory};
use molt_rollout::{Buckets, Census, readable};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Metrics of one step by name.
pub type Metrics = BTreeMap<String, f64>;

/// Where the time of a step went, from the metrics of the step before to its own, without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Times {
    /// What follows a step: records, evaluation, checkpoint.
    pub between: Duration,
    /// The trainer waited for rollouts.
    pub generate_wait: Duration,
    /// Rewards and the estimator.
    pub advantages: Duration,
    /// Forward, backward and update.
    pub train: Duration,
    /// New weights went to the generator.
    pub publish: Duration,
}

impl Times {
    /// Of the step itself.
    fn work(&self) -> f64 {
        (self.generate_wait + self.advantages + self.train + self.publish).as_secs_f64()
    }
}

/// Cuts time into pieces without gaps.
#[derive(Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the last call, or the start.
    pub(crate) fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

/// `summary.json` of `molt train`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    pub seed: u64,
    /// Share of held-out rollouts solved before the first step and after the last.
    pub held_out_accuracy_before: Option<f64>,
    pub held_out_accuracy_after: Option<f64>,
    pub wall_s: f64,
    /// Batches trained on.
    pub steps: u64,
    /// Action tokens trained on.
    pub tokens: usize,
    /// Largest `|log π_train − log π_rollout|` of an on-policy token.
    pub logprob_gap_max: f64,
    /// Rollouts that were not trained on, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Mean reward of the trained rollouts of the first tenth of the steps, and of the last.
    pub reward_first: Option<f64>,
    pub reward_last: Option<f64>,
    /// Batches up to the last, in a row, of which the mask of `algo.correction` left next to nothing.
    #[serde(default)]
    pub masked_in_a_row: u64,
    /// Of `wall_s`, what passed before the checkpoint that the run went on from.
    #[serde(skip)]
    pub(crate) before_s: f64,
    /// Sum and number of the trained rewards of every step.
    #[serde(skip)]
    pub(crate) rewards: Vec<(f64, usize)>,
}

impl Summary {
    /// A run that has done nothing yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The summary of a checkpoint, to go on with.
    pub(crate) fn resumed(self, rewards: Vec<(f64, usize)>) -> Self {
        Self { before_s: self.wall_s, rewards, ..self }
    }

    /// Takes the time since the run was `started`.
    pub(crate) fn clock(&mut self, started: Instant) {
        self.wall_s = self.before_s + started.elapsed().as_secs_f64();
    }

    /// Counts rollouts that were dropped.
    pub fn add_dropped(&mut self, dropped: &[Dropped]) {
        for drop in dropped {
            *self.dropped.entry(drop.reason.label().to_owned()).or_default() += 1;
        }
    }

    /// Takes in what the correction of a step masked. Says so if that was all.
    pub fn add_correction(&mut self, correction: Option<&Correction>, sums: &PolicySums) -> Option<String> {
        let masks = correction.is_some_and(|correction| correction.mode == CorrectionMode::Mask);
        let share = sums.outside as f64 / sums.units.max(1) as f64;
        if !masks || sums.units == 0 || share < ALL_MASKED {
            self.masked_in_a_row = 0;
            return None;
        }
        self.masked_in_a_row += 1;
        Some(format!(
            "{:.1}% of the batch is outside the band of algo.correction and was not learnt from",
            100.0 * share
        ))
    }

    /// Takes in one step and the rewards it trained on.
    pub fn add_step(&mut self, sums: &PolicySums, rewards: &[f64]) {
        self.steps += 1;
        self.tokens += sums.tokens;
        self.logprob_gap_max = self.logprob_gap_max.max(sums.gap_max);
        self.rewards.push((rewards.iter().sum(), rewards.len()));
        let tenth = self.rewards.len().div_ceil(10);
        self.reward_first = mean(&self.rewards[..tenth]);
        self.reward_last = mean(&self.rewards[self.rewards.len() - tenth..]);
    }
}

/// With this share of a batch outside the band of its correction, nothing is learnt from it.
const ALL_MASKED: f64 = 0.999;

fn mean(sums: &[(f64, usize)]) -> Option<f64> {
    let (sum, count) = sums.iter().fold((0.0, 0), |(s, n), (sum, count)| (s + sum, n + count));
    (count > 0).then(|| sum / count as f64)
}

/// What one step trained on, and what came of it.
#[derive(Debug)]
pub struct Step<'a> {
    pub groups: &'a [Group],
    /// The groups of earlier batches that were trained with them, if there is a replay buffer.
    pub replayed: Option<&'a [Group]>,
    /// The reward that every finished rollout is trained with, in order.
    pub rewards: &'a [f64],
    /// Of the groups, those from which nothing can be learnt.
    pub silent: usize,
    /// Every rollout dropped since the step before.
    pub dropped: &'a [Dropped],
    /// What the filter chose from, if there is one.
    pub census: Option<&'a Census>,
    /// How hard the prompts are, if there is a curriculum.
    pub buckets: Option<Buckets>,
    /// What was made of the rewards, if anything is.
    pub shaped: Option<Shaped>,
    /// Truncated rollouts are not in the loss.
    pub mask_truncated: bool,
    /// The column that says where a row comes from.
    pub source_key: &'a str,
    /// The weights that the step began with.
    pub version: WeightVersion,
    /// Sums over all optimiser steps of the batch.
    pub sums: PolicySums,
    /// The last of them.
    pub update: Update,
    pub times: Times,
}

impl Step<'_> {
    /// All metrics of the step.
    pub fn metrics(&self) -> Metrics {
        let Self { sums, update, times, .. } = self;
        let mut metrics = Metrics::new();
        let mut put = |name: &str, value: f64| {
            metrics.insert(name.to_owned(), value);
        };
        let tokens = sums.tokens as f64;
        // Nothing is trained while a critic warms up.
        if sums.tokens > 0 {
            put("train/loss", sums.loss);
            put("train/grad_norm", update.grad_norm);
            put("train/lr", update.learning_rate);
        }
        put("train/tokens", tokens);
        put("train/on_policy_tokens", sums.on_policy as f64);
        if sums.balance > 0.0 {
            put("train/router_balance", sums.balance);
        }
        put("rollout/groups", self.groups.len() as f64);
        put("rollout/zero_advantage_groups", self.silent as f64);
        let equal = populations::zero_variance_groups(self.groups, self.rewards);
        put("rollout/zero_variance_groups", equal as f64);
        put("time/step", times.between.as_secs_f64() + times.work());
        put("time/between", times.between.as_secs_f64());
        put("time/generate_wait", times.generate_wait.as_secs_f64());
        put("time/advantages", times.advantages.as_secs_f64());
        put("time/train", times.train.as_secs_f64());
        put("time/publish", times.publish.as_secs_f64());
        put("perf/tokens_per_s", self.tokens_per_s());
        if sums.tokens > 0 {
            put("train/entropy", sums.entropy / tokens);
            put("train/clip_fraction", sums.clipped / tokens);
            put("train/dual_clip_fraction", sums.dual_clipped / tokens);
            put("train/advantage_mean", sums.advantage / tokens);
            put("train/ratio_mean", sums.ratio / tokens);
            put("train/kl_sampled", sums.kl / tokens);
        }
        if sums.units > 0 {
            put("train/correction_outside", sums.outside as f64 / sums.units as f64);
        }
        if sums.on_policy > 0 {
            put("train/logprob_gap_mean", sums.gap / sums.on_policy as f64);
            put("train/logprob_gap_max", sums.gap_max);
        }
        if !self.rewards.is_empty() {
            put("rollout/reward_mean", self.reward_mean());
            put("rollout/solved_rate", self.share(|t| t.reward.solved()));
            put("rollout/truncated_rate", self.share(|t| t.truncated));
            put("rollout/invalid_rate", self.share(|t| matches!(t.reward, Reward::Invalid { .. })));
        }
        if self.mask_truncated {
            put("rollout/masked", self.trajectories().filter(|t| t.truncated).count() as f64);
        }
        for (name, mean) in molt_rollout::metrics(self.trajectories()) {
            put(&metric_name(&name), mean);
        }
        metrics.extend(populations::rollouts(self.groups, self.rewards, self.dropped));
        metrics.extend(populations::staleness(self.groups, self.version));
        metrics.extend(self.replayed.map(|old| populations::replayed(old, self.version)).unwrap_or_default());
        metrics.extend(populations::sources(self.groups, self.rewards, self.source_key));
        metrics.extend(self.census.map(populations::before_filter).unwrap_or_default());
        metrics.extend(self.buckets.as_ref().map(populations::curriculum).unwrap_or_default());
        metrics.extend(self.shaped.as_ref().map(populations::shaped).unwrap_or_default());
        metrics
    }

    /// What the progress line says of the step.
    pub fn line(&self) -> String {
        let share = |part: Duration| (100.0 * part.as_secs_f64() / self.times.work().max(1e-9)).round();
        format!(
            "reward {:.2} solved {:.0}% {} tok/s gen {}% train {}% publish {}%",
            self.reward_mean(),
            100.0 * self.share(|t| t.reward.solved()),
            thousands(self.tokens_per_s()),
            share(self.times.generate_wait),
            share(self.times.train),
            share(self.times.publish),
        )
    }

    fn trajectories(&self) -> impl Iterator<Item = &Trajectory> {
        finished(self.groups)
    }

    fn tokens_per_s(&self) -> f64 {
        self.sums.tokens as f64 / self.times.work().max(1e-9)
    }

    fn reward_mean(&self) -> f64 {
        self.rewards.iter().sum::<f64>() / self.rewards.len().max(1) as f64
    }

    /// The share of the trained rollouts for which `holds`.
    fn share(&self, holds: impl Fn(&Trajectory) -> bool) -> f64 {
        self.trajectories().filter(|t| holds(t)).count() as f64 / self.rewards.len().max(1) as f64
    }
}

/// Groups from which nothing can be learnt, e.g. since all rollouts have the same reward. `rows` are those of all
/// finished rollouts, in order.
pub fn zero_advantage_groups(groups: &[Group], rows: &[PolicyRow<'_>]) -> usize {
    let mut rows = rows.iter();
    let silent = |group: &&Group| {
        let segments = group.finished().map(|t| t.segments.len()).sum();
        // Not `all` on the iterator itself, which would stop before the group's last row.
        let nonzero = rows.by_ref().take(segments).filter(|r| r.advantages.iter().any(|&a| a != 0.0)).count();
        nonzero == 0
    };
    groups.iter().filter(silent).count()
}

/// A metric of rollouts among those of the run: `reward/NAME` is the host's, and others are a plugin's own.
pub fn metric_name(name: &str) -> String {
    if name.starts_with("reward/") { name.to_owned() } else { format!("plugin/{name}") }
}

/// The rollouts of a batch for people to read.
pub fn markdown(step: u64, groups: &[Group]) -> String {
    let groups: Vec<String> = groups.iter().map(readable::group).collect();
    format!("# Step {step}\n\n{}", groups.join("\n"))
}

/// A whole number with commas.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId};
    use molt_core::outcome::{DropReason, Outcome};
    use molt_core::settings::CorrectionLevel;
    use molt_core::trajectory::{Sampled, Segment};
    use proptest::prelude::*;

    fn group(id: u64, rollouts: &[(Reward, usize, u64)]) -> Group {
        let task = Task { id: "7".into(), messages: Vec::new(), label: None, fields: Vec::new() };
        let finished = |(member, (reward, length, version)): (u32, &(Reward, usize, u64))| {
            let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(*version) };
            let mut segment = Segment::new(vec![1]);
            segment.push_turn(0, &vec![sampled; *length]);
            Outcome::Finished(Box::new(Trajectory {
                rollout: RolloutId { group: GroupId(id), member },
                task: task.clone(),
                segments: vec![segment],
                messages: Vec::new(),
                completion: String::new(),
                truncated: *length > 3,
                reward: reward.clone(),
                turn_rewards: vec![reward.value(0.0)],
                metrics: BTreeMap::from([
                    ("lines".to_owned(), *length as f64),
                    ("reward/math".to_owned(), 2.0 * *length as f64),
                ]),
            }))
        };
        let outcomes = (0..).zip(rollouts).map(finished).collect();
        Group { id: GroupId(id), task, outcomes }
    }

    #[test]
    fn a_mean_is_a_sum_over_its_population() {
        let scored = |value| Reward::Scored { value, solved: value >= 1.0 };
        let invalid = Reward::Invalid { reason: "no number".into() };
        let groups = [
            group(0, &[(scored(1.0), 2, 5), (scored(0.0), 4, 4), (invalid, 1, 5)]),
            group(1, &[(scored(1.0), 1, 5)]),
        ];
        let advantages = [vec![0.0; 2], vec![0.0, 0.0, 0.0, -1.0], vec![0.5], vec![0.0]];
        let rows: Vec<PolicyRow<'_>> = finished(&groups)
            .zip(&advantages)
            .map(|(t, advantages)| PolicyRow::new(&t.segments[0], advantages.clone()))
            .collect();
        let drop = |member| Dropped {
            rollout: RolloutId { group: GroupId(2), member },
            reason: DropReason::Plugin("trap".into()),
            detail: String::new(),
        };
        let step = Step {
            groups: &groups,
            rewards: &[1.0, 0.0, 0.0, 1.0],
            silent: zero_advantage_groups(&groups, &rows),
            dropped: &[drop(0), drop(1)],
            census: None,
            buckets: None,
            replayed: None,
            shaped: None,
            mask_truncated: true,
            source_key: "data_source",
            version: WeightVersion(5),
            sums: PolicySums {
                tokens: 8,
                clipped: 2.0,
                advantage: -0.5,
                on_policy: 4,
                gap: 4e-6,
                gap_max: 3e-6,
                ..Default::default()
            },
            update: Update::default(),
            times: Times {
                generate_wait: Duration::from_secs(2),
                advantages: Duration::ZERO,
                train: Duration::from_secs(1),
                publish: Duration::from_secs(1),
                between: Duration::from_secs(3),
            },
        };
        let metrics = step.metrics();
        for (name, want) in [
            ("rollout/reward_mean", 0.5),
            ("rollout/solved_rate", 0.5),
            ("rollout/invalid_rate", 0.25),
            ("rollout/truncated_rate", 0.25),
            ("rollout/length_mean", 2.0),
            ("rollout/groups", 2.0),
            ("rollout/zero_advantage_groups", 1.0),
            ("rollout/zero_variance_groups", 1.0),
            ("rollout/staleness_mean", 0.5),
            ("rollout/staleness_max", 1.0),
            ("train/clip_fraction", 0.25),
            ("train/advantage_mean", -0.0625),
            ("train/logprob_gap_mean", 1e-6),
            ("train/logprob_gap_max", 3e-6),
            ("plugin/lines", 2.0),
            ("reward/math", 4.0),
            ("dropped/trap", 2.0),
            ("perf/tokens_per_s", 2.0),
            ("time/step", 7.0),
            ("rollout/masked", 1.0),
        ] {
            assert!((metrics[name] - want).abs() < 1e-12, "{name}: {} is not {want}", metrics[name]);
        }
        let parts = ["between", "generate_wait", "advantages", "train", "publish"];
        let parts: f64 = parts.iter().map(|part| metrics[&format!("time/{part}")]).sum();
        assert!((parts - metrics["time/step"]).abs() < 1e-12, "nothing is left over");
        assert_eq!(step.line(), "reward 0.50 solved 50% 2 tok/s gen 50% train 25% publish 25%");
    }

    /// One of a batch's rollouts.
    #[derive(Debug, Clone)]
    struct Played {
        /// None of an output that could not be scored.
        reward: Option<f64>,
        truncated: bool,
        /// The tokens of each turn, and where a second segment begins.
        turns: Vec<usize>,
        cut: usize,
        version: u64,
    }

    fn played() -> impl Strategy<Value = Vec<Vec<Played>>> {
        let reward = prop::option::weighted(0.8, prop_oneof![Just(0.0), Just(1.0), -2.0..2.0]);
        let turns = prop::collection::vec(1_usize..5, 1..4);
        let rollout = (reward, any::<bool>(), turns, 0_usize..4, 0_u64..12).prop_map(
            |(reward, truncated, turns, cut, version)| Played { reward, truncated, turns, cut, version },
        );
        prop::collection::vec(prop::collection::vec(rollout, 0..5), 0..4)
    }

    fn groups_of(played: &[Vec<Played>]) -> Vec<Group> {
        let rollout = |group: u64, member: u32, of: &Played| {
            let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(of.version) };
            let mut segments = vec![Segment::new(vec![1; 4])];
            for (turn, tokens) in of.turns.iter().enumerate() {
                if turn > 0 && turn == of.cut {
                    segments.push(Segment::new(vec![1; 4]));
                }
                let segment = segments.last_mut().expect("there is one");
                segment.push_turn(turn as u32, &vec![sampled; *tokens]);
                segment.push_context(&[3]);
            }
            let reward = match of.reward {
                Some(value) => Reward::Scored { value, solved: value >= 1.0 },
                None => Reward::Invalid { reason: String::new() },
            };
            let outcomes = self::group(group, &[(reward, 1, of.version)]).outcomes;
            let Some(Outcome::Finished(mut trajectory)) = outcomes.into_iter().next() else {
                panic!("it is finished")
            };
            trajectory.rollout.member = member;
            (trajectory.segments, trajectory.truncated) = (segments, of.truncated);
            Outcome::Finished(trajectory)
        };
        let group = |(id, rollouts): (u64, &Vec<Played>)| Group {
            outcomes: (0..).zip(rollouts).map(|(member, of)| rollout(id, member, of)).collect(),
            ..group(id, &[])
        };
        (0..).zip(played).map(group).collect()
    }

    proptest! {
        #![proptest_config(crate::step::tests::config(200))]

        /// Each mean once more, slowly: everything of its population in one list, summed up and divided by its length.
        #[test]
        fn every_mean_is_that_of_a_slow_recount(played in played(), drops in 0_u32..4) {
            let groups = groups_of(&played);
            let rewards: Vec<f64> = played.iter().flatten().map(|of| of.reward.unwrap_or(-2.0)).collect();
            let drop = |member| Dropped {
                rollout: RolloutId { group: GroupId(9), member },
                reason: if member % 2 == 0 { DropReason::Filtered } else { DropReason::NoReward },
                detail: String::new(),
            };
            let step = Step {
                groups: &groups,
                replayed: None,
                rewards: &rewards,
                silent: 0,
                dropped: &(0..drops).map(drop).collect::<Vec<_>>(),
                census: None,
                buckets: None,
                shaped: None,
                mask_truncated: true,
                source_key: "data_source",
                version: WeightVersion(11),
                sums: PolicySums::default(),
                update: Update::default(),
                times: Times::default(),
            };
            let metrics = step.metrics();
            let all: Vec<&Played> = played.iter().flatten().collect();
            let of = |value: &dyn Fn(&Played) -> f64| all.iter().map(|of| value(of)).collect::<Vec<f64>>();
            let truth = |is: bool| if is { 1.0 } else { 0.0 };
            let length = |of: &Played| of.turns.iter().sum::<usize>() as f64;
            // A segment begins with a prompt of 4, and behind each turn there is a token of the environment.
            let segments = |of: &Played| 1 + usize::from(of.cut > 0 && of.cut < of.turns.len());
            let every_turn: Vec<f64> = all.iter().flat_map(|of| &of.turns).map(|&tokens| tokens as f64).collect();
            let ages: Vec<f64> =
                all.iter().flat_map(|of| vec![(11 - of.version) as f64; length(of) as usize]).collect();
            // Half the mean squared difference of all pairs is the variance.
            let spread = |rewards: &[f64]| {
                let mut squares = 0.0;
                for a in rewards {
                    for b in rewards {
                        squares += (a - b).powi(2);
                    }
                }
                let n = rewards.len() as f64;
                (squares / (2.0 * n * (n - 1.0))).sqrt()
            };
            let of_group = |group: &Vec<Played>| -> Vec<f64> {
                group.iter().map(|of| of.reward.unwrap_or(-2.0)).collect()
            };
            let spreads = played.iter().map(of_group).filter(|rewards| rewards.len() > 1);
            let spreads: Vec<f64> = spreads.map(|rewards| spread(&rewards)).collect();
            let means = [
                ("rollout/reward_mean", rewards.clone()),
                ("rollout/solved_rate", of(&|of| truth(of.reward.is_some_and(|value| value >= 1.0)))),
                ("rollout/truncated_rate", of(&|of| truth(of.truncated))),
                ("rollout/invalid_rate", of(&|of| truth(of.reward.is_none()))),
                ("rollout/length_mean", of(&length)),
                ("rollout/turns_mean", of(&|of| of.turns.len() as f64)),
                ("rollout/total_length_mean", of(&|of| {
                    length(of) + (of.turns.len() + 4 * segments(of)) as f64
                })),
                ("rollout/segments_mean", of(&|of| segments(of) as f64)),
                ("turn/length_mean", every_turn.clone()),
                ("rollout/staleness_mean", ages.clone()),
                ("group/reward_std_mean", spreads),
                ("rollout/reward_std", if rewards.len() > 1 { vec![spread(&rewards)] } else { Vec::new() }),
            ];
            for (name, values) in means {
                let want = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
                let same = match (metrics.get(name), want) {
                    (Some(found), Some(want)) => (found - want).abs() < 1e-9,
                    (found, want) => found.is_none() && want.is_none(),
                };
                prop_assert!(same, "{name}: {:?} is not {want:?}", metrics.get(name));
            }
            let most = |values: Vec<f64>| values.into_iter().reduce(f64::max);
            for (name, values) in [
                ("rollout/length_max", of(&length)),
                ("rollout/turns_max", of(&|of| of.turns.len() as f64)),
                ("turn/length_max", every_turn),
                ("rollout/staleness_max", ages.clone()),
            ] {
                prop_assert_eq!(metrics.get(name).copied(), most(values), "{}", name);
            }
            let shares: f64 = metrics.iter().filter(|(name, _)| name.starts_with("staleness/")).map(|(_, x)| x).sum();
            prop_assert!((shares - truth(!ages.is_empty())).abs() < 1e-9, "every token has one age");
            prop_assert_eq!(metrics["rollout/finished"], all.len() as f64);
            prop_assert_eq!(metrics["rollout/dropped"], f64::from(drops));
            let by_reason: f64 = metrics.iter().filter(|(name, _)| name.starts_with("dropped/")).map(|(_, x)| x).sum();
            prop_assert_eq!(by_reason, f64::from(drops));
        }
    }

    /// Of two batches with 3 of 12 and 3 of 4 the share is 6 of 16, not the mean of the shares, .5 (TRL 6380).
    #[test]
    fn a_mean_is_no_mean_of_means() {
        let scored = |right: usize, all: usize| -> Vec<(Reward, usize, u64)> {
            (0..all).map(|nth| (Reward::Scored { value: 0.0, solved: nth < right }, 1, 0)).collect()
        };
        let groups = [group(0, &scored(3, 12)), group(1, &scored(3, 4))];
        let mut sums =
            PolicySums { tokens: 12, clipped: 3.0, units: 12, outside: 3, ..PolicySums::default() };
        sums.add(&PolicySums { tokens: 4, clipped: 3.0, units: 4, outside: 3, ..PolicySums::default() });
        let step = Step {
            groups: &groups,
            replayed: None,
            rewards: &[0.0; 16],
            silent: 0,
            dropped: &[],
            census: None,
            buckets: None,
            shaped: None,
            mask_truncated: false,
            source_key: "data_source",
            version: WeightVersion(0),
            sums,
            update: Update::default(),
            times: Times::default(),
        };
        let metrics = step.metrics();
        for name in ["rollout/solved_rate", "train/clip_fraction", "train/correction_outside"] {
            assert_eq!(metrics[name], 0.375, "{name}");
        }
    }

    #[test]
    fn batches_that_are_masked_whole_are_counted_in_a_row() {
        let correction = |mode| Correction { level: CorrectionLevel::Token, mode, low: 0.5, high: 2.0 };
        let mask = correction(CorrectionMode::Mask);
        let seen = |outside, units| PolicySums { outside, units, ..PolicySums::default() };
        let mut summary = Summary::default();
        for (sums, want) in [
            (seen(999, 1000), 1),
            (seen(4, 4), 2),
            (seen(998, 1000), 0),
            (seen(1, 1), 1),
            (seen(0, 0), 0),
            (seen(1, 1), 1),
        ] {
            let note = summary.add_correction(Some(&mask), &sums);
            assert_eq!(summary.masked_in_a_row, want);
            assert_eq!(note.is_some(), want > 0);
        }
        // What is clipped is learnt from, however much it is.
        assert_eq!(summary.add_correction(Some(&correction(CorrectionMode::Clip)), &seen(1, 1)), None);
        assert_eq!(summary.masked_in_a_row, 0);
    }

    #[test]
    fn without_on_policy_tokens_there_is_no_gap() {
        let groups = [group(0, &[(Reward::Scored { value: 1.0, solved: true }, 1, 4)])];
        let step = Step {
            groups: &groups,
            rewards: &[1.0],
            silent: 0,
            dropped: &[],
            census: None,
            buckets: None,
            replayed: None,
            shaped: None,
            mask_truncated: false,
            source_key: "data_source",
            version: WeightVersion(5),
            sums: PolicySums { tokens: 1, ..PolicySums::default() },
            update: Update::default(),
            times: Times::default(),
        };
        assert!(!step.metrics().keys().any(|name| name.contains("gap")));
    }

    #[test]
    fn first_and_last_are_the_tenths_at_the_ends() {
        let mut summary = Summary::default();
        for step in 0..20 {
            // Steps of different sizes: the mean is over rollouts, not over steps.
            let rewards = vec![f64::from(step); if step % 2 == 0 { 1 } else { 3 }];
            summary.add_step(&PolicySums { tokens: 2, ..PolicySums::default() }, &rewards);
        }
        assert_eq!((summary.steps, summary.tokens), (20, 40));
        assert_eq!((summary.reward_first, summary.reward_last), (Some(0.75), Some(18.75)));
    }

    #[test]
    fn numbers_for_people() {
        for (value, want) in [(0.4, "0"), (999.0, "999"), (1830.2, "1,830"), (1_234_567.0, "1,234,567")] {
            assert_eq!(thousands(value), want);
        }
    }
}
