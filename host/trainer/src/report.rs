//! What a training step and a run tell people: metrics, the progress line, trajectories, the summary.
//! Every mean is a sum over a named population, divided by its size; an empty population has no mean.

use crate::advantage::finished;
use crate::loss::PolicyLoss;
use crate::loss::correction::Correction;
use crate::loss::surrogate::Surrogate;
use crate::optim::Update;
use crate::populations;
use crate::shape::Shaped;
use crate::step::{PolicyRow, PolicySums};
use molt_core::ids::WeightVersion;
use molt_core::outcome::{Dropped, Group, by_reason};
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
    /// Batches from which nothing could be learnt: their gradient was 0 throughout.
    pub idle_steps: u64,
    /// Of these the last ones, in a row.
    pub idle_in_a_row: u64,
    /// Action tokens trained on.
    pub tokens: usize,
    /// Largest `|log π_train − log π_rollout|` of an on-policy token; none without any.
    pub logprob_gap_max: Option<f64>,
    /// Rollouts that were not trained on, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Mean reward of the trained rollouts of the first tenth of the steps, and of the last.
    pub reward_first: Option<f64>,
    pub reward_last: Option<f64>,
    /// Mean divergence from the reference, or teacher, of the first tenth of the steps, and of the last.
    pub kl_first: Option<f64>,
    pub kl_last: Option<f64>,
    /// What `best/` holds, if the run keeps that.
    pub best: Option<Kept>,
    /// Batches up to the last, in a row, of which the mask of `algo.correction` left next to nothing.
    #[serde(default)]
    pub masked_in_a_row: u64,
    /// Of `wall_s`, what passed before the checkpoint that the run went on from.
    #[serde(skip)]
    pub(crate) before_s: f64,
    /// Sum and number of the trained rewards of every step.
    #[serde(skip)]
    pub(crate) rewards: Vec<(f64, usize)>,
    /// The divergence of every step, as [`Summary::rewards`].
    #[serde(skip)]
    pub(crate) divergences: Vec<(f64, usize)>,
}

/// The model that did best in an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What it is the best by, such as `accuracy`.
    pub metric: String,
    pub value: f64,
    pub step: u64,
}

impl Summary {
    /// A run that has done nothing yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The summary of a checkpoint, to go on with.
    pub(crate) fn resumed(self, [rewards, divergences]: [Vec<(f64, usize)>; 2]) -> Self {
        Self { before_s: self.wall_s, rewards, divergences, ..self }
    }

    /// Takes the time since the run was `started`.
    pub(crate) fn clock(&mut self, started: Instant) {
        self.wall_s = self.before_s + started.elapsed().as_secs_f64();
    }

    /// Counts rollouts that were dropped.
    pub fn add_dropped(&mut self, dropped: &[Dropped]) {
        for (reason, count) in by_reason(dropped) {
            *self.dropped.entry(reason).or_default() += count;
        }
    }

    /// Takes in whether a step had a gradient. Says so if it had none, ever more rarely while that goes on.
    pub(crate) fn add_idle(&mut self, is_idle: bool, rows: usize) -> Option<String> {
        self.idle_in_a_row = if is_idle { self.idle_in_a_row + 1 } else { 0 };
        self.idle_steps += u64::from(is_idle);
        let why = match rows {
            0 => "every rollout is truncated, which train.mask_truncated leaves out: nothing was learnt",
            _ => {
                "the gradient is 0, so nothing was learnt: the rewards of each prompt's rollouts are alike, or no token counts"
            }
        };
        rarely(why.to_owned(), self.idle_in_a_row)
    }

    /// Takes in what the correction of a step masked. Says so if that was all, ever more rarely while that goes on.
    pub fn add_correction(&mut self, correction: Option<&Correction>, sums: &PolicySums) -> Option<String> {
        let masks = correction.is_some_and(|correction| correction.mode == CorrectionMode::Mask);
        let share = sums.outside as f64 / sums.units.max(1) as f64;
        if !masks || sums.units == 0 || share < ALL_MASKED {
            self.masked_in_a_row = 0;
            return None;
        }
        self.masked_in_a_row += 1;
        let note = format!(
            "{:.1}% of the batch is outside the band of algo.correction and was not learnt from",
            100.0 * share
        );
        rarely(note, self.masked_in_a_row)
    }

    /// Takes in one step, the rewards it trained on, and the divergence that it saw, if there is any.
    pub fn add_step(&mut self, sums: &PolicySums, rewards: &[f64], kl: Option<f64>) {
        self.steps += 1;
        self.tokens += sums.tokens;
        if sums.on_policy > 0 {
            let most = self.logprob_gap_max.unwrap_or(0.0);
            self.logprob_gap_max = Some(most.max(sums.gap_max));
        }
        self.rewards.push((rewards.iter().sum(), rewards.len()));
        self.divergences.push((kl.unwrap_or(0.0), usize::from(kl.is_some())));
        (self.reward_first, self.reward_last) = tenths(&self.rewards);
        (self.kl_first, self.kl_last) = tenths(&self.divergences);
    }
}

/// With this share of a batch outside the band of its correction, nothing is learnt from it.
const ALL_MASKED: f64 = 0.999;

/// What is said of so many steps in a row: of the first, the second, the fourth, and so on.
fn rarely(note: String, in_a_row: u64) -> Option<String> {
    in_a_row.is_power_of_two().then(|| match in_a_row {
        1 => note,
        steps => format!("{note}, now in {steps} steps in a row"),
    })
}

/// The means of the first tenth of the steps, and of the last.
fn tenths(steps: &[(f64, usize)]) -> (Option<f64>, Option<f64>) {
    let tenth = steps.len().div_ceil(10);
    (mean(&steps[..tenth]), mean(&steps[steps.len() - tenth..]))
}

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
    /// Something scores the rollouts; without, as with a teacher, all rewards are 0 and say nothing.
    pub is_scored: bool,
    /// What is minimised.
    pub loss: &'a PolicyLoss,
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
            if self.loss.surrogate.is_some_and(Surrogate::has_bounds) {
                put("train/clip_fraction", sums.clipped / tokens);
            }
            if self.loss.surrogate.is_some_and(Surrogate::has_dual_bound) {
                put("train/dual_clip_fraction", sums.dual_clipped / tokens);
            }
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
        metrics.retain(|name, _| self.is_scored || !is_of_scores(name));
        metrics
    }

    /// What the progress line says of the step with these metrics.
    pub fn line(&self, metrics: &Metrics) -> String {
        let mut parts = Vec::new();
        if self.is_scored {
            let solved = 100.0 * self.share(|t| t.reward.solved());
            parts.push(format!("reward {:.2} solved {solved:.0}%", self.reward_mean()));
        }
        parts.extend(metrics.get("train/kl_reference").map(|kl| format!("kl {kl:.4}")));
        // While a critic warms up none are trained.
        if self.sums.tokens > 0 {
            parts.push(format!("{} tok/s", thousands(self.tokens_per_s())));
        }
        let shares = [
            ("gen", self.times.generate_wait),
            ("advantages", self.times.advantages),
            ("train", self.times.train),
            ("publish", self.times.publish),
        ];
        let of_all = |part: Duration| (100.0 * part.as_secs_f64() / self.times.work().max(1e-9)).round();
        let shares = shares.map(|(name, part)| (name, of_all(part)));
        parts.extend(
            shares.iter().filter(|(_, share)| *share > 0.0).map(|(name, share)| format!("{name} {share}%")),
        );
        parts.join(" ")
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

/// Whether a metric of the host is of what was scored or solved.
fn is_of_scores(name: &str) -> bool {
    let Some((section, last)) = name.split_once('/') else { return false };
    let of_host = !["plugin", "reward", "replay"].contains(&section);
    let others = ["rollout/invalid_rate", "rollout/zero_variance_groups"];
    of_host
        && (section == "curriculum"
            || last.contains("reward")
            || last.contains("solved")
            || others.contains(&name))
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
mod tests;
