//! How a rollout that came to its end is scored: by its environment, and by reward plugins, some of which see
//! it alone and some of which see it with its group. The rules are the same in training and in evaluation:
//!
//! * The reward is the sum of what the environment gave per step, and of the score of each reward plugin times
//!   its weight.
//! * A rollout that some reward plugin cannot grade, by failing or by saying `infra`, is dropped. One that scores
//!   groups sees only rollouts that were not dropped before; when it fails, all of those are dropped.
//! * One that the environment or a reward plugin gave a number beyond 1e12 is dropped too, as that plugin's failure.
//! * Otherwise, a rollout that some reward plugin finds `invalid` is invalid, whatever the others say.
//! * Whether it is solved is for the first reward plugin to say, else for the environment, else for a reward of
//!   at least 1.
//! * Where several name a metric, the last reward plugin's is kept. `reward/NAME` is what one of them gave, before
//!   its weight.
//! * One that nobody scored is dropped, or has the reward 0 where learning needs none.
//! * A turn earned what the environment gave for it, and the last turn what the reward plugins gave, too.

use crate::episode::Played;
use futures_util::future::join_all;
use molt_core::ids::RolloutId;
use molt_core::outcome::{DropReason, Dropped, Outcome};
use molt_core::trajectory::{Reward as Score, Trajectory};
use molt_sandbox::{Call, Failure, Reward, Sample, Verdict};

/// The magnitude at most of a reward, before and after its weight, and of what the environment gave for one turn and
/// for all. Estimators and the trainer compute with f32, in which squares of more of them than any batch has add up.
const LARGEST: f64 = 1e12;

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
    (rewards, is_optional): (&[WeightedReward], bool),
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
        finish((rewards, is_optional), played, verdicts, environment)
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
    Err(Dropped { rollout, reason: DropReason::Plugin(label.into()), detail })
}

/// Puts together what environment and rewards said of a rollout.
fn finish(
    (rewards, is_optional): (&[WeightedReward], bool),
    played: Played,
    verdicts: Vec<Option<Verdict>>,
    environment: &str,
) -> Result<Trajectory, Dropped> {
    let Played { id: rollout, segments, sample, tally } = played;
    let Sample { task, messages, completion, truncated, seed: _ } = sample;
    let (mut metrics, mut turn_rewards) = (tally.metrics, tally.turns);
    let bounded = |plugin: &str, value: f64| match value.abs() <= LARGEST {
        true => Ok(value),
        false => Err(Dropped {
            rollout,
            reason: DropReason::Plugin("reward-too-large".into()),
            detail: format!(
                "plugin `{plugin}` rewarded rollout {rollout} with {value:e}, and the \
                 magnitude is {LARGEST:e} at most, with its weight and without: scale it down"
            ),
        }),
    };
    // Each turn too: turns that cancel out in the sum still reach an estimator one by one.
    for &earned in &turn_rewards {
        bounded(environment, earned)?;
    }
    let given = tally.scored.then(|| bounded(environment, turn_rewards.iter().sum()));
    let mut total = given.transpose()?;
    let mut values = Vec::from_iter(total.map(|value| (environment, value)));
    let mut solved = None;
    let mut invalid = None;
    for (WeightedReward { plugin, weight }, verdict) in rewards.iter().zip(verdicts) {
        match verdict {
            Some(Verdict::Scored { reward, solved: verdict, metrics: more }) => {
                let gain = bounded(&plugin.info().name, weight * bounded(&plugin.info().name, reward)?)?;
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
    let reward = match (invalid, total) {
        (Some(reason), _) => Score::Invalid { reason },
        (None, Some(value)) => {
            Score::Scored { value, solved: solved.or(tally.solved).unwrap_or(value >= 1.0) }
        }
        // Not dropped: a policy must not escape its score by never coming to an end.
        (None, None) if is_optional => Score::Scored { value: 0.0, solved: false },
        (None, None) if !tally.over => {
            let reason = "no turn or no room was left before anything was scored".to_string();
            Score::Invalid { reason }
        }
        (None, None) => {
            let detail =
                "neither the environment nor a reward plugin scored the rollout; reward.name names one";
            return Err(Dropped { rollout, reason: DropReason::NoReward, detail: detail.to_string() });
        }
    };
    Ok(Trajectory { rollout, task, segments, messages, completion, truncated, reward, turn_rewards, metrics })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::Tally;
    use molt_core::chat::Task;
    use molt_core::ids::GroupId;

    /// A rollout that its environment ended, and rewarded like this turn by turn.
    fn rewarded(turns: &[f64]) -> Result<Trajectory, Dropped> {
        let task = Task { id: "1".into(), messages: vec![], label: None, fields: vec![] };
        let id = RolloutId { group: GroupId(3), member: 1 };
        let sample = Sample { task, seed: 0, messages: vec![], completion: String::new(), truncated: false };
        let tally = Tally { over: true, turns: turns.into(), scored: true, ..Tally::default() };
        finish((&[], false), Played { id, segments: vec![], sample, tally }, vec![], "odd")
    }

    #[test]
    fn what_nobody_scored_is_dropped_unless_no_reward_is_needed() {
        let of = |is_optional| {
            let task = Task { id: "1".into(), messages: vec![], label: None, fields: vec![] };
            let id = RolloutId { group: GroupId(3), member: 1 };
            let sample =
                Sample { task, seed: 0, messages: vec![], completion: String::new(), truncated: false };
            let tally = Tally { over: true, turns: vec![0.0], ..Tally::default() };
            finish((&[], is_optional), Played { id, segments: vec![], sample, tally }, vec![], "odd")
        };
        assert_eq!(of(false).map_err(|dropped| dropped.reason), Err(DropReason::NoReward));
        let trajectory = of(true).expect("no reward is needed");
        assert_eq!(trajectory.reward, Score::Scored { value: 0.0, solved: false });
    }

    #[test]
    fn every_turn_and_their_sum_stay_where_f32_is_exact_enough() {
        let kept = rewarded(&[LARGEST, -LARGEST, 0.5]).map(|t| (t.reward, t.turn_rewards));
        let score = Score::Scored { value: 0.5, solved: false };
        assert_eq!(kept, Ok((score, vec![LARGEST, -LARGEST, 0.5])));
        let turns: [&[f64]; 5] =
            [&[1e300, -1e300], &[4e38, -4e38], &[0.0, 2e12, -2e12], &[1e308, 1e308], &[6e11, 6e11]];
        for turns in turns {
            let dropped = rewarded(turns).expect_err("too large");
            assert_eq!(dropped.reason, DropReason::Plugin("reward-too-large".into()), "{turns:?}");
            assert!(dropped.reason.is_failure());
            assert!(dropped.detail.contains("`odd`") && dropped.detail.contains("3.1"), "{}", dropped.detail);
        }
    }
}
