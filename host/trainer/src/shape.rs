//! What is made of the rewards of a batch before an estimator sees them, and which rollouts are in the loss.

use crate::advantage::finished;
use crate::error::TrainError;
use molt_core::outcome::{Group, Outcome};
use molt_core::settings;
use molt_core::trajectory::{Reward, Trajectory};
use molt_rollout::TurnSettings;

/// Bounds of a reward, and a penalty for coming near the limit of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shaping {
    low: f64,
    high: f64,
    overlong: Option<Overlong>,
}

/// Where a rollout has to end, and what it loses if it does not.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Overlong {
    /// Tokens of a turn at most.
    turn: usize,
    /// Tokens of a segment at most.
    context: usize,
    /// The last tokens before either limit.
    cache: usize,
    penalty: f64,
}

/// What shaping did to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shaped {
    /// Sum of the rewards before, over the rollouts that were scored.
    pub raw: f64,
    pub scored: usize,
    /// Rewards that were beyond a bound.
    pub clipped: usize,
    /// Rollouts that lost something, and all that they lost.
    pub overlong: usize,
    pub penalty: f64,
}

impl Shaping {
    /// For rollouts that were played like `turn`.
    pub fn new(reward: &settings::Reward, turn: &TurnSettings) -> Self {
        let overlong = reward.overlong_cache.zip(reward.overlong_penalty);
        Self {
            low: reward.clip_low.unwrap_or(f64::NEG_INFINITY),
            high: reward.clip_high.unwrap_or(f64::INFINITY),
            overlong: overlong.map(|(cache, penalty)| Overlong {
                turn: turn.sampling.max_tokens,
                context: turn.max_context,
                cache,
                penalty,
            }),
        }
    }

    /// Whether it changes any reward.
    pub fn is_set(&self) -> bool {
        self.low > f64::NEG_INFINITY || self.high < f64::INFINITY || self.overlong.is_some()
    }

    /// Clips the reward of every finished rollout, and then takes the penalty off; whatever that changes counts for
    /// its last turn, so that turns still add up to the reward. An output that could not be scored stays what it is: it
    /// is trained with the lowest reward of the batch, and so with no more than any other after this.
    pub fn apply(&self, groups: &mut [Group]) -> Shaped {
        let mut shaped = Shaped::default();
        for outcome in groups.iter_mut().flat_map(|group| &mut group.outcomes) {
            let Outcome::Finished(trajectory) = outcome else { continue };
            let penalty = self.overlong.map_or(0.0, |overlong| overlong.penalty_of(trajectory));
            let Reward::Scored { value, .. } = &mut trajectory.reward else { continue };
            let clipped = value.clamp(self.low, self.high);
            shaped.raw += *value;
            shaped.scored += 1;
            shaped.clipped += usize::from(clipped != *value);
            shaped.overlong += usize::from(penalty > 0.0);
            shaped.penalty += penalty;
            let change = clipped - penalty - *value;
            *value = clipped - penalty;
            if let Some(last) = trajectory.turn_rewards.last_mut() {
                *last += change;
            }
        }
        shaped
    }
}

impl Overlong {
    /// The soft overlong punishment (DAPO, Yu et al. 2025, equation 13), of the turn or the segment that came nearest to
    /// its limit: nothing up to `cache` tokens before it, `penalty` at it, and linear between.
    fn penalty_of(&self, trajectory: &Trajectory) -> f64 {
        let into = |tokens: usize, limit: usize| (tokens + self.cache).saturating_sub(limit);
        let of_segment = trajectory.segments.iter().map(|segment| into(segment.tokens().len(), self.context));
        let of_turn = turn_lengths(trajectory).into_iter().map(|tokens| into(tokens, self.turn));
        let most = of_segment.chain(of_turn).max().unwrap_or(0).min(self.cache);
        self.penalty * most as f64 / self.cache.max(1) as f64
    }
}

/// Action tokens of every turn of a rollout that has some, in order.
pub(crate) fn turn_lengths(trajectory: &Trajectory) -> Vec<usize> {
    let mut lengths: Vec<(u32, usize)> = Vec::new();
    for action in trajectory.segments.iter().flat_map(|segment| segment.actions()) {
        match lengths.last_mut() {
            Some((turn, tokens)) if *turn == action.turn => *tokens += 1,
            _ => lengths.push((action.turn, 1)),
        }
    }
    lengths.into_iter().map(|(_, tokens)| tokens).collect()
}

/// Leaves out those of truncated rollouts, of one row for every segment of the finished rollouts in order.
pub(crate) fn without_truncated<T>(groups: &[Group], rows: Vec<T>) -> Vec<T> {
    let truncated = finished(groups).flat_map(|t| t.segments.iter().map(|_| t.truncated));
    rows.into_iter().zip(truncated).filter(|(_, truncated)| !truncated).map(|(row, _)| row).collect()
}

/// How many finished rollouts a group must have.
///
/// # Errors
/// If they are too few for an estimator that compares them.
pub fn min_group(rollout: &settings::Rollout, estimator: &str, needs_group: bool) -> Result<u32, TrainError> {
    let least = if needs_group { 2 } else { 1 };
    match rollout.min_group {
        Some(finished) if finished < least => {
            Err(TrainError::MinGroup { estimator: estimator.to_owned(), finished })
        }
        set => Ok(set.unwrap_or(least)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside::Said;
    use crate::step::PolicyRow;
    use crate::step::tests::trajectory;
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId, WeightVersion};
    use molt_core::sampling::Sampling;
    use molt_core::trajectory::{Sampled, Segment};

    /// A rollout with a prompt of 4 tokens and turns of these lengths, 3 tokens of the environment between.
    fn rollout(reward: Reward, turns: &[usize], truncated: bool) -> Outcome {
        let mut segment = Segment::new(vec![1; 4]);
        for (turn, &length) in (0..).zip(turns) {
            if turn > 0 {
                segment.push_context(&[5; 3]);
            }
            let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(0) };
            segment.push_turn(turn, &vec![sampled; length]);
        }
        let mut turn_rewards = vec![0.25; turns.len()];
        turn_rewards[turns.len() - 1] = reward.value(0.0) - 0.25 * (turns.len() - 1) as f64;
        let rollout = RolloutId { group: GroupId(0), member: 0 };
        let bare = trajectory(rollout, &task(), vec![segment], reward);
        Outcome::Finished(Box::new(Trajectory { truncated, turn_rewards, ..bare }))
    }

    fn task() -> Task {
        Task { id: "1".into(), messages: Vec::new(), label: None, fields: Vec::new() }
    }

    fn scored(value: f64) -> Reward {
        Reward::Scored { value, solved: value >= 1.0 }
    }

    fn group(outcomes: Vec<Outcome>) -> Group {
        Group { id: GroupId(0), task: task(), outcomes }
    }

    fn shaping(reward: settings::Reward) -> Shaping {
        let sampling = Sampling {
            temperature: 1.0,
            top_p: 1.0,
            max_tokens: 20,
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
        };
        Shaping::new(
            &reward,
            &TurnSettings {
                sampling,
                max_context: 40,
                max_turns: 3,
                record_routing: false,
                reward_is_optional: false,
            },
        )
    }

    fn values(groups: &[Group]) -> Vec<f64> {
        finished(groups).map(|t| t.reward.value(-9.0)).collect()
    }

    #[test]
    fn rewards_are_clipped_and_turns_still_add_up() {
        let shaping =
            shaping(settings::Reward { clip_low: Some(-1.0), clip_high: Some(2.0), ..Default::default() });
        let invalid = Reward::Invalid { reason: String::new() };
        let mut groups = [group(vec![
            rollout(scored(5.0), &[2, 2], false),
            rollout(scored(-3.0), &[2], false),
            rollout(scored(0.5), &[2, 2, 2], false),
            rollout(invalid, &[2], false),
        ])];
        let shaped = shaping.apply(&mut groups);
        assert_eq!(values(&groups), [2.0, -1.0, 0.5, -9.0]);
        assert_eq!(shaped, Shaped { raw: 2.5, scored: 3, clipped: 2, ..Shaped::default() });
        let turns: Vec<&[f64]> = finished(&groups).map(|t| &t.turn_rewards[..]).collect();
        assert_eq!(turns, [&[0.25, 1.75][..], &[-1.0], &[0.25, 0.25, 0.0], &[0.0]]);
        assert!(finished(&groups).next().is_some_and(|t| t.reward.solved()), "solved is what it was");
    }

    #[test]
    fn without_settings_nothing_changes() {
        let mut groups =
            [group(vec![rollout(scored(1e12), &[20, 13], true), rollout(scored(-0.1), &[1], false)])];
        let before = groups.clone();
        let shaped = shaping(settings::Reward::default()).apply(&mut groups);
        assert_eq!(groups, before);
        assert_eq!((shaped.clipped, shaped.overlong), (0, 0));
    }

    /// Equation 13 with a limit of 20 and a cache of 8, by hand: 0 up to 12 tokens, then (12 - n) / 8.
    #[test]
    fn the_penalty_is_linear_before_the_limit() {
        let reward = |penalty| settings::Reward {
            clip_high: Some(1.0),
            overlong_cache: Some(8),
            overlong_penalty: Some(penalty),
            ..Default::default()
        };
        let shaping_one = shaping(reward(1.0));
        for (tokens, want) in [(1, 0.0), (12, 0.0), (13, -0.125), (16, -0.5), (19, -0.875), (20, -1.0)] {
            let mut groups = [group(vec![rollout(scored(0.0), &[tokens], tokens == 20)])];
            shaping_one.apply(&mut groups);
            assert_eq!(values(&groups), [want], "{tokens} tokens");
        }
        // Clipped first; the longest turn counts, and so does the context: 4 + 10 + 3 + 18 = 35 of 40 tokens is 3 into
        // the cache, 18 of 20 is 6 into it; 4 + 12 + 3 + 12 + 3 + 6 = 40 is all of it, 12 of 20 none.
        let mut groups = [group(vec![
            rollout(scored(3.0), &[10, 18], false),
            rollout(scored(1.0), &[12, 12, 6], true),
            rollout(scored(1.0), &[2], false),
        ])];
        let shaped = shaping(reward(2.0)).apply(&mut groups);
        assert_eq!(values(&groups), [1.0 - 1.5, 1.0 - 2.0, 1.0]);
        assert_eq!((shaped.clipped, shaped.overlong, shaped.penalty), (1, 2, 3.5));
        for trajectory in finished(&groups) {
            assert_eq!(trajectory.turn_rewards.iter().sum::<f64>(), trajectory.reward.value(0.0));
        }
    }

    #[test]
    fn truncated_rollouts_have_no_rows() {
        let groups = [
            group(vec![rollout(scored(0.0), &[2], true), rollout(scored(0.0), &[3, 1], false)]),
            group(vec![rollout(scored(0.0), &[5], true)]),
        ];
        let rows = |groups| -> Vec<PolicyRow<'_>> {
            finished(groups)
                .flat_map(|t| &t.segments)
                .map(|segment| PolicyRow::new(segment, vec![1.0; segment.actions().len()]))
                .collect()
        };
        let mut said = Said::default();
        said.values = (0..11).map(|n| n as f32).collect();
        let returns: Vec<f32> = (0..11).map(|n| n as f32 / 2.0).collect();
        let lessons = without_truncated(&groups, said.lessons(&rows(&groups), &returns));
        assert_eq!(lessons.len(), 1);
        assert_eq!(lessons[0].values, [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(lessons[0].returns, [1.0, 1.5, 2.0, 2.5]);
        assert!(Said::default().lessons(&rows(&groups), &returns).is_empty(), "there is no critic");
        let kept = without_truncated(&groups, rows(&groups));
        assert_eq!(kept.iter().map(|row| row.advantages.len()).collect::<Vec<_>>(), [4]);
        let groups = [group(vec![rollout(scored(0.0), &[2], true)])];
        assert!(without_truncated(&groups, rows(&groups)).is_empty());
    }

    #[test]
    fn a_group_has_as_many_as_its_estimator_needs() {
        let rollout = |min_group| settings::Rollout { min_group, ..settings::Rollout::default() };
        for (set, needs_group, want) in
            [(None, true, 2), (None, false, 1), (Some(1), false, 1), (Some(5), true, 5)]
        {
            assert!(matches!(min_group(&rollout(set), "grpo", needs_group), Ok(least) if least == want));
        }
        let error = min_group(&rollout(Some(1)), "grpo", true).expect_err("one has nothing to compare with");
        assert!(error.to_string().contains("rollout.min_group"), "{error}");
    }
}
