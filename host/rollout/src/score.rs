//! How a rollout that came to its end is scored: by its environment, and by reward plugins, some of which see
//! it alone and some of which see it with its group. The rules are the same in training and in evaluation:
//!
//! * The reward is the sum of what the environment gave per step, and of the score of each reward plugin times
//!   its weight.
//! * A rollout that some reward plugin cannot grade, by failing or by saying `infra`, is dropped. One that scores
//!   groups sees only rollouts that were not dropped before; when it fails, all of those are dropped.
//! * Otherwise, a rollout that some reward plugin finds `invalid` is invalid, whatever the others say.
//! * Whether it is solved is for the first reward plugin to say, else for the environment, else for a reward of
//!   at least 1.
//! * Where several name a metric, the last reward plugin's is kept. `reward/NAME` is what one of them gave, before
//!   its weight.
//! * A turn earned what the environment gave for it, and the last turn what the reward plugins gave, too.

use crate::episode::Played;
use futures_util::future::join_all;
use molt_core::ids::RolloutId;
use molt_core::outcome::{DropReason, Dropped, Outcome};
use molt_core::trajectory::{Reward as Score, Trajectory};
use molt_sandbox::{Call, Failure, Reward, Sample, Verdict};

/// A reward plugin, and what its score is multiplied by.
#[derive(Clone)]
pub struct WeightedReward {
    pub plugin: Reward,
    /// Finite.
    pub weight: f64,
}

/// A rollout with the verdicts of the rewards that see it alone; None in the place of one that sees groups.
pub(crate) struct Graded {
    played: Played,
    verdicts: Vec<Option<Verdict>>,
}

/// Asks the rewards that see a rollout alone, all at once.
pub(crate) async fn alone(rewards: &[WeightedReward], call: Call, played: Played) -> Result<Graded, Dropped> {
    let ask = async |reward: &WeightedReward| match reward.plugin.scores_groups() {
        true => None,
        false => Some(reward.plugin.score(call, &played.sample).await),
    };
    let answers = join_all(rewards.iter().map(ask)).await;
    let mut verdicts = Vec::with_capacity(rewards.len());
    for (reward, answer) in rewards.iter().zip(answers) {
        let usable = answer.map(|answer| usable(reward, played.id, answer));
        verdicts.push(usable.transpose()?);
    }
    Ok(Graded { played, verdicts })
}

/// Asks the rewards that see all rollouts of a group which are not dropped yet, and gives every rollout its
/// outcome. `environment` is the name of the one that the rollouts come from.
pub(crate) async fn together(
    rewards: &[WeightedReward],
    call: Call,
    rollouts: Vec<Result<Graded, Dropped>>,
    environment: &str,
) -> Vec<Outcome> {
    let mut samples: Vec<Sample> = Vec::new();
    if rewards.iter().any(|reward| reward.plugin.scores_groups()) {
        samples.extend(rollouts.iter().flatten().map(|graded| graded.played.sample.clone()));
    }
    let ask = async |reward: &WeightedReward| match reward.plugin.scores_groups() && !samples.is_empty() {
        true => Some(reward.plugin.score_group(call, &samples).await.map(Vec::into_iter)),
        false => None,
    };
    let mut answers = join_all(rewards.iter().map(ask)).await;
    let mut outcome = |Graded { played, mut verdicts }| {
        // Every answer moves on to the next rollout, whatever becomes of this one.
        let answers: Vec<Option<Result<Verdict, Failure>>> = answers
            .iter_mut()
            .map(|answer| match answer.as_mut()? {
                Ok(verdicts) => verdicts.next().map(Ok),
                Err(failure) => Some(Err(failure.clone())),
            })
            .collect();
        for ((reward, verdict), answer) in rewards.iter().zip(&mut verdicts).zip(answers) {
            if let Some(answer) = answer {
                *verdict = Some(usable(reward, played.id, answer)?);
            }
        }
        finish(rewards, played, verdicts, environment)
    };
    let outcomes = rollouts.into_iter().map(|rollout| match rollout.and_then(&mut outcome) {
        Ok(trajectory) => Outcome::Finished(Box::new(trajectory)),
        Err(dropped) => Outcome::Dropped(dropped),
    });
    outcomes.collect()
}

/// A verdict on the rollout, or why there is none.
fn usable(
    reward: &WeightedReward,
    rollout: RolloutId,
    answer: Result<Verdict, Failure>,
) -> Result<Verdict, Dropped> {
    let (label, detail) = match answer {
        Ok(Verdict::Infra(what)) => {
            ("infra", format!("{} could not grade rollout {rollout}: {what}", reward.plugin.info().name))
        }
        Ok(verdict) => return Ok(verdict),
        Err(failure) if failure.rollout.is_none() => {
            (failure.label(), format!("{failure}, asked about the group of rollout {rollout}"))
        }
        Err(failure) => (failure.label(), failure.to_string()),
    };
    Err(Dropped { rollout, reason: DropReason::Plugin(label), detail })
}

/// Puts together what environment and rewards said of a rollout.
fn finish(
    rewards: &[WeightedReward],
    played: Played,
    verdicts: Vec<Option<Verdict>>,
    environment: &str,
) -> Result<Trajectory, Dropped> {
    let Played { id: rollout, segments, sample, tally } = played;
    let Sample { task, messages, completion, truncated } = sample;
    let (mut metrics, mut turn_rewards) = (tally.metrics, tally.turns);
    let mut total = tally.scored.then(|| turn_rewards.iter().sum::<f64>());
    let mut values = Vec::from_iter(total.map(|value| (environment, value)));
    let mut solved = None;
    let mut invalid = None;
    for (WeightedReward { plugin, weight }, verdict) in rewards.iter().zip(verdicts) {
        match verdict {
            Some(Verdict::Scored { reward, solved: verdict, metrics: more }) => {
                let gain = weight * reward;
                total = Some(total.unwrap_or(0.0) + gain);
                turn_rewards.last_mut().into_iter().for_each(|last| *last += gain);
                solved = solved.or(Some(verdict));
                values.push((plugin.info().name.as_str(), reward));
                metrics.extend(more);
            }
            Some(Verdict::Invalid(reason)) => invalid = invalid.or(Some(reason)),
            Some(Verdict::Infra(_)) | None => {}
        }
    }
    metrics.extend(values.into_iter().map(|(name, value)| (format!("reward/{name}"), value)));
    let dropped = |reason, detail: String| Err(Dropped { rollout, reason, detail });
    let reward = match (invalid, total) {
        (Some(reason), _) => Score::Invalid { reason },
        (None, Some(value)) => {
            // Estimators see rewards as f32.
            if !(value as f32).is_finite() {
                let detail =
                    format!("the rewards of rollout {rollout} add up to {value}, which is not a finite f32");
                return dropped(DropReason::Plugin("not-finite"), detail);
            }
            Score::Scored { value, solved: solved.or(tally.solved).unwrap_or(value >= 1.0) }
        }
        // Not dropped: a policy must not escape its score by never coming to an end.
        (None, None) if !tally.over => {
            let reason = "no turn or no room was left before anything was scored".to_string();
            Score::Invalid { reason }
        }
        (None, None) => {
            let detail =
                "neither the environment nor a reward plugin scored the rollout; reward.name names one";
            return dropped(DropReason::NoReward, detail.to_string());
        }
    };
    Ok(Trajectory { rollout, task, segments, messages, completion, truncated, reward, turn_rewards, metrics })
}
