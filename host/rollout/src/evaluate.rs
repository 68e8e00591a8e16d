//! Evaluation on prompts that are not trained on: pass@1, the unbiased pass@k, and maj@k.

use crate::episode::{Driver, Stream};
use crate::error::{ErrorGuard, RolloutError};
use crate::prompts::{Prompts, source};
use futures_util::stream::{self, StreamExt};
use molt_core::ids::GroupId;
use molt_core::majority::{Answer, majority_at_k};
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

/// The metric by which an environment or a reward says what was answered: rollouts of a prompt with the same number in
/// it gave the same answer. It is not averaged.
const ANSWER: &str = "answer";

/// What an evaluation measures.
#[derive(Debug, Clone, Copy)]
pub struct Measure<'a> {
    /// Rollouts of each prompt.
    pub samples: u32,
    /// The k of pass@k and maj@k, beside 1.
    pub ks: &'a [u32],
    /// The column that says where a row comes from.
    pub source_key: &'a str,
    /// When failing rollouts end it.
    pub errors: ErrorLimit,
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalReport {
    /// Rollouts of each prompt.
    pub samples: u32,
    /// Of all prompts.
    #[serde(flatten)]
    pub all: Scores,
    /// Of the prompts of each source; those without one are in none.
    pub sources: BTreeMap<String, Scores>,
    /// Metrics of the plugins and the value of each reward, over the rollouts that have it.
    pub metrics: BTreeMap<String, f64>,
    /// One per prompt, in their order.
    pub rows: Vec<EvalRow>,
    /// Every rollout; the group's number is the prompt's, counted from 0.
    #[serde(skip)]
    pub groups: Vec<Group>,
}

/// How a number of prompts came out.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Scores {
    pub prompts: usize,
    /// pass@k by k, averaged over the prompts; 1 is always among them. A dropped rollout is not solved.
    pub pass_at: BTreeMap<u32, f64>,
    /// For each k above 1 the chance that the answer most of `k` rollouts agree on is right, averaged over the prompts.
    /// What a rollout answered is the metric `answer` if one of the prompt's rollouts has it, else the text of its last
    /// turn. Dropped rollouts have no vote.
    pub maj_at: BTreeMap<u32, f64>,
    /// The share of the finished rollouts that is solved. None if none finished.
    pub solved_of_finished: Option<f64>,
    /// Over the rollouts that were scored with a number. None if there is none.
    pub mean_reward: Option<f64>,
    /// Action tokens per finished rollout. None if none finished.
    pub mean_tokens: Option<f64>,
    /// Rollouts that were not dropped.
    pub finished: usize,
    /// Of these, the ones whose output could not be scored.
    pub invalid: usize,
    /// Of these, the ones that ran out of tokens or turns.
    pub truncated: usize,
    /// Dropped rollouts by reason.
    pub dropped: BTreeMap<String, usize>,
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

/// Plays `samples` rollouts of every prompt.
/// Seeds derive from the run's seed, the prompt's place and the sample alone, apart from those of training.
///
/// # Errors
/// If the generator stopped, too many rollouts failed, or a k is not from 1 to `samples`.
pub async fn evaluate<G: Generator>(
    driver: &Driver<G>,
    prompts: &Prompts,
    measure: Measure<'_>,
) -> Result<EvalReport, RolloutError> {
    let samples = measure.samples;
    if let Some(&k) = [1].iter().chain(measure.ks).find(|k| pass_at_k(samples, 0, **k).is_none()) {
        return Err(RolloutError::PassAtK { k, samples });
    }
    // Numbers and not rows go into the stream: a closure over borrowed rows could not be sent between threads.
    let mut groups = stream::iter(0..prompts.rows.len())
        .map(|row| async move {
            driver.members(Stream::Eval, GroupId(row as u64), &prompts.rows[row], 0..samples).await
        })
        .buffer_unordered((IN_FLIGHT / samples as usize).max(1));
    let mut guard = ErrorGuard::new(measure.errors, prompts.rows.len() as u64 * u64::from(samples));
    let mut done: Vec<Group> = Vec::new();
    while let Some(group) = groups.next().await {
        let group = group?;
        group.outcomes.iter().try_for_each(|outcome| guard.enter(outcome))?;
        done.push(group);
    }
    done.sort_by_key(|group| group.id);
    Ok(report(done, measure))
}

fn report(groups: Vec<Group>, measure: Measure<'_>) -> EvalReport {
    let rows: Vec<EvalRow> = groups.iter().map(row).collect();
    let prompts: Vec<(&Group, &EvalRow)> = groups.iter().zip(&rows).collect();
    let mut by_source: BTreeMap<&str, Vec<(&Group, &EvalRow)>> = BTreeMap::new();
    for &(group, row) in &prompts {
        if let Some(source) = source(&group.task, measure.source_key) {
            by_source.entry(source).or_default().push((group, row));
        }
    }
    let of_source = |(name, prompts): (&str, Vec<_>)| (name.to_owned(), scores(&prompts, measure));
    EvalReport {
        samples: measure.samples,
        all: scores(&prompts, measure),
        sources: by_source.into_iter().map(of_source).collect(),
        metrics: metrics(groups.iter().flat_map(Group::finished)),
        rows,
        groups,
    }
}

fn scores(prompts: &[(&Group, &EvalRow)], Measure { samples, ks, .. }: Measure<'_>) -> Scores {
    let (groups, rows): (Vec<&Group>, Vec<&EvalRow>) = prompts.iter().copied().unzip();
    let mean =
        |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let pass_at = [1].iter().chain(ks).filter_map(|&k| {
        let each: Option<Vec<f64>> = rows.iter().map(|row| pass_at_k(samples, row.solved, k)).collect();
        Some((k, mean(&each?)?))
    });
    let answers: Vec<Vec<Answer>> = groups.iter().map(|group| answers(group)).collect();
    let maj_at = ks.iter().filter(|k| **k > 1).filter_map(|&k| {
        let each: Option<Vec<f64>> =
            answers.iter().map(|answers| majority_at_k(samples, answers, k)).collect();
        Some((k, mean(&each?)?))
    });
    let mut dropped = BTreeMap::new();
    for (reason, _) in rows.iter().flat_map(|row| &row.dropped) {
        *dropped.entry(reason.clone()).or_insert(0) += 1;
    }
    let finished = || groups.iter().flat_map(|group| group.finished());
    let count = |holds: &dyn Fn(&Trajectory) -> bool| finished().filter(|t| holds(t)).count();
    let rewards: Vec<f64> = rows.iter().flat_map(|row| row.rewards.clone()).collect();
    let tokens: Vec<f64> = finished().map(|trajectory| trajectory.action_tokens() as f64).collect();
    let solved: Vec<f64> = finished().map(|t| f64::from(u8::from(t.reward.solved()))).collect();
    Scores {
        prompts: groups.len(),
        pass_at: pass_at.collect(),
        maj_at: maj_at.collect(),
        solved_of_finished: mean(&solved),
        mean_reward: mean(&rewards),
        mean_tokens: mean(&tokens),
        finished: solved.len(),
        invalid: count(&|t| matches!(t.reward, Reward::Invalid { .. })),
        truncated: count(&|t| t.truncated),
        dropped,
    }
}

/// The answers that the rollouts of a prompt gave. If some say so by [`ANSWER`], those that do not gave none.
fn answers(group: &Group) -> Vec<Answer> {
    let said = |trajectory: &Trajectory| trajectory.metrics.get(ANSWER).copied();
    let by_metric = group.finished().any(|trajectory| said(trajectory).is_some());
    let mut all: BTreeMap<(u64, &str), Answer> = BTreeMap::new();
    for trajectory in group.finished() {
        let answer = match (by_metric, said(trajectory)) {
            // Without the sign of a zero.
            (true, Some(number)) => ((number + 0.0).to_bits(), ""),
            (true, None) => continue,
            (false, _) => (0, trajectory.completion.trim()),
        };
        let answer = all.entry(answer).or_insert(Answer { votes: 0, solved: 0 });
        answer.votes += 1;
        answer.solved += u32::from(trajectory.reward.solved());
    }
    all.into_values().collect()
}

/// A power of two by which finite numbers add up to a finite one, however large they are and however many.
const SCALE: f64 = 1.0 / (1_u64 << 63) as f64;

/// The mean of every metric over the rollouts that have it, but for [`ANSWER`]: finite, as they are.
pub fn metrics<'a>(rollouts: impl Iterator<Item = &'a Trajectory>) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (name, value) in rollouts.flat_map(|rollout| &rollout.metrics).filter(|(name, _)| *name != ANSWER) {
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

    /// A group of four: two say 3, one says nothing, one was dropped; or, without the metric, what they wrote.
    #[test]
    fn an_answer_is_the_metric_or_the_text() {
        let rollout = |metric: Option<f64>, text: &str, solved| {
            let reward = Reward::Scored { value: 0.0, solved };
            let metrics = metric.map(|value| ("answer".to_owned(), value)).into_iter().collect();
            let completion = text.to_owned();
            Outcome::Finished(Box::new(Trajectory { reward, metrics, completion, ..with_metric(0.0) }))
        };
        let votes = |outcomes: Vec<Outcome>| {
            let group = Group { id: GroupId(0), task: with_metric(0.0).task, outcomes };
            answers(&group).iter().map(|a| (a.votes, a.solved)).collect::<Vec<_>>()
        };
        let text = ["so it is 3", "it is 3", "3", " 3"];
        let said = [Some(3.0), Some(3.0), None, Some(-0.0)];
        let outcomes =
            |with: bool| (0..4).map(|i| rollout(said[i].filter(|_| with), text[i], i < 3)).collect();
        assert_eq!(votes(outcomes(true)), [(1, 0), (2, 2)]);
        assert_eq!(votes(outcomes(false)), [(2, 1), (1, 1), (1, 1)], "sorted by text");
        assert!(
            !metrics(std::iter::once(&Trajectory {
                metrics: [("answer".to_owned(), 3.0)].into(),
                ..with_metric(0.0)
            }))
            .contains_key("answer")
        );
    }

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
