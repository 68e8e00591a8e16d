//! Evaluation: pass@1 and the unbiased pass@k on prompts that are not trained on.

use crate::episode::{Driver, Stream};
use crate::error::{ErrorGuard, RolloutError};
use crate::prompts::Prompts;
use futures_util::stream::{self, StreamExt};
use molt_core::ids::GroupId;
use molt_core::outcome::{Group, Outcome};
use molt_core::passk::pass_at_k;
use molt_core::trajectory::{Reward, Trajectory};
use molt_core::window::ErrorLimit;
use molt_generator::Generator;
use serde::Serialize;
use std::collections::BTreeMap;

/// Rollouts in flight, unless one prompt has more: more than a generator decodes together, and few enough to hold
/// in memory.
const IN_FLIGHT: usize = 256;

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalReport {
    /// Rollouts of each prompt.
    pub samples: u32,
    /// pass@k by k, averaged over the prompts; 1 is always among them. A dropped rollout is not solved.
    pub pass_at: BTreeMap<u32, f64>,
    /// Over the rollouts that were scored with a number. None if there is none.
    pub mean_reward: Option<f64>,
    /// Rollouts whose output could not be scored.
    pub invalid: usize,
    /// Rollouts that ran out of tokens or turns.
    pub truncated: usize,
    /// Action tokens per finished rollout. None if none finished.
    pub mean_tokens: Option<f64>,
    /// Metrics of the plugins and the value of each reward, over the rollouts that have it.
    pub metrics: BTreeMap<String, f64>,
    /// Dropped rollouts by reason.
    pub dropped: BTreeMap<String, usize>,
    /// One per prompt, in their order.
    pub rows: Vec<EvalRow>,
    /// Every rollout; the group's number is the prompt's, counted from 0.
    #[serde(skip)]
    pub groups: Vec<Group>,
}

/// The result of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalRow {
    /// The row's id.
    pub id: String,
    /// Rollouts that solved it.
    pub solved: u32,
    /// The reward of each rollout that was scored with a number.
    pub rewards: Vec<f64>,
    /// Its dropped rollouts, each with its reason and a sentence.
    pub dropped: Vec<(String, String)>,
}

/// Plays `samples` rollouts of every prompt and averages pass@k over the prompts, for 1 and every k of `ks`.
/// Seeds derive from the run's seed, the prompt's place and the sample alone, apart from those of training.
///
/// # Errors
/// If the generator stopped, too many rollouts failed, or a k is not from 1 to `samples`.
pub async fn evaluate<G: Generator>(
    driver: &Driver<G>,
    prompts: &Prompts,
    samples: u32,
    ks: &[u32],
    errors: ErrorLimit,
) -> Result<EvalReport, RolloutError> {
    if let Some(&k) = [1].iter().chain(ks).find(|k| pass_at_k(samples, 0, **k).is_none()) {
        return Err(RolloutError::PassAtK { k, samples });
    }
    // Numbers and not rows go into the stream: a closure over borrowed rows could not be sent between threads.
    let mut groups = stream::iter(0..prompts.rows.len())
        .map(|row| async move {
            driver.members(Stream::Eval, GroupId(row as u64), &prompts.rows[row], 0..samples).await
        })
        .buffer_unordered((IN_FLIGHT / samples as usize).max(1));
    let mut guard = ErrorGuard::new(errors, prompts.rows.len() as u64 * u64::from(samples));
    let mut done: Vec<Group> = Vec::new();
    while let Some(group) = groups.next().await {
        let group = group?;
        group.outcomes.iter().try_for_each(|outcome| guard.enter(outcome))?;
        done.push(group);
    }
    done.sort_by_key(|group| group.id);
    Ok(report(done, samples, ks))
}

fn report(groups: Vec<Group>, samples: u32, ks: &[u32]) -> EvalReport {
    let rows: Vec<EvalRow> = groups.iter().map(row).collect();
    let mean =
        |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let pass_at = [1].iter().chain(ks).filter_map(|&k| {
        let each: Option<Vec<f64>> = rows.iter().map(|row| pass_at_k(samples, row.solved, k)).collect();
        Some((k, mean(&each?)?))
    });
    let mut dropped = BTreeMap::new();
    for (reason, _) in rows.iter().flat_map(|row| &row.dropped) {
        *dropped.entry(reason.clone()).or_insert(0) += 1;
    }
    let finished = || groups.iter().flat_map(Group::finished);
    let rewards: Vec<f64> = rows.iter().flat_map(|row| row.rewards.clone()).collect();
    let tokens: Vec<f64> = finished().map(|trajectory| trajectory.action_tokens() as f64).collect();
    EvalReport {
        samples,
        pass_at: pass_at.collect(),
        mean_reward: mean(&rewards),
        invalid: finished().filter(|t| matches!(t.reward, Reward::Invalid { .. })).count(),
        truncated: finished().filter(|t| t.truncated).count(),
        mean_tokens: mean(&tokens),
        metrics: metrics(finished()),
        dropped,
        rows,
        groups,
    }
}

/// A power of two by which finite numbers add up to a finite one, however large they are and however many.
const SCALE: f64 = 1.0 / (1_u64 << 63) as f64;

/// The mean of every metric over the rollouts that have it: finite, as they are.
pub fn metrics<'a>(rollouts: impl Iterator<Item = &'a Trajectory>) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (name, value) in rollouts.flat_map(|rollout| &rollout.metrics) {
        let (sum, count) = sums.entry(name).or_default();
        *sum += value * SCALE;
        *count += 1;
    }
    // Rounding alone could take it beyond the largest number.
    let mean = |sum: f64, count| (sum / count as f64 / SCALE).clamp(f64::MIN, f64::MAX);
    sums.into_iter().map(|(name, (sum, count))| (name.to_owned(), mean(sum, count))).collect()
}

fn row(group: &Group) -> EvalRow {
    let rewards = group.finished().filter_map(|trajectory| match trajectory.reward {
        Reward::Scored { value, .. } => Some(value),
        Reward::Invalid { .. } => None,
    });
    let dropped = group.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Dropped(dropped) => Some((dropped.reason.label().to_owned(), dropped.detail.clone())),
        Outcome::Finished(_) => None,
    });
    EvalRow {
        id: group.task.id.clone(),
        solved: group.finished().filter(|trajectory| trajectory.reward.solved()).count() as u32,
        rewards: rewards.collect(),
        dropped: dropped.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_core::chat::Task;
    use molt_core::ids::RolloutId;

    fn with_metric(value: f64) -> Trajectory {
        Trajectory {
            rollout: RolloutId { group: GroupId(0), member: 0 },
            task: Task { id: "1".into(), messages: vec![], label: None, fields: vec![] },
            segments: vec![],
            messages: vec![],
            completion: String::new(),
            truncated: false,
            reward: Reward::Scored { value: 0.0, solved: false },
            turn_rewards: vec![],
            metrics: [("m".to_owned(), value)].into(),
        }
    }

    #[test]
    fn the_mean_of_finite_metrics_is_finite() {
        for (values, mean) in [
            (vec![1e308, 1e308, 1e308], 1e308),
            (vec![f64::MAX; 7], f64::MAX),
            (vec![f64::MIN, f64::MAX], 0.0),
            (vec![0.1, 0.2, 0.6], (0.1 + 0.2 + 0.6) / 3.0),
        ] {
            let rollouts: Vec<Trajectory> = values.into_iter().map(with_metric).collect();
            assert_eq!(metrics(rollouts.iter())["m"], mean);
        }
    }
}
