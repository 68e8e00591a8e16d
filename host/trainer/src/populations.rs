//! What the rollouts of a step were like: each metric is a sum over one population, divided by its size. Rollouts,
//! turns, groups and tokens are never mixed, and an empty population has no metric.

use crate::advantage::finished;
use crate::report::Metrics;
use crate::shape::{Shaped, turn_lengths};
use molt_core::ids::WeightVersion;
use molt_core::outcome::{Dropped, Group, by_reason};
use molt_core::trajectory::Trajectory;
use molt_rollout::{Buckets, Census, source};
use std::collections::BTreeMap;

/// Versions that a token may be behind before they are counted together.
const AGES: usize = 8;

/// Some numbers of one population.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    sum: f64,
    count: usize,
    largest: f64,
}

impl Tally {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        values.fold(Self::default(), |tally, value| Self {
            sum: tally.sum + value,
            count: tally.count + 1,
            largest: if tally.count == 0 { value } else { tally.largest.max(value) },
        })
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    fn max(self) -> Option<f64> {
        (self.count > 0).then_some(self.largest)
    }
}

/// The rollouts of a step: finished ones of `groups` with the reward that each is trained with, and dropped ones.
pub(crate) fn rollouts(groups: &[Group], rewards: &[f64], dropped: &[Dropped]) -> Metrics {
    let lengths = Tally::of(finished(groups).map(|t| t.action_tokens() as f64));
    let whole = |t: &Trajectory| t.segments.iter().map(|s| s.tokens().len()).sum::<usize>() as f64;
    let whole = Tally::of(finished(groups).map(whole));
    let segments = Tally::of(finished(groups).map(|t| t.segments.len() as f64));
    let turns = Tally::of(finished(groups).map(|t| turn_lengths(t).len() as f64));
    let of_turns = Tally::of(finished(groups).flat_map(turn_lengths).map(|tokens| tokens as f64));
    let mut metrics = some([
        ("rollout/finished", Some(lengths.count as f64)),
        ("rollout/length_mean", lengths.mean()),
        ("rollout/length_max", lengths.max()),
        ("rollout/total_length_mean", whole.mean()),
        ("rollout/segments_mean", segments.mean()),
        ("rollout/reward_std", spread(rewards)),
        ("rollout/turns_mean", turns.mean()),
        ("rollout/turns_max", turns.max()),
        ("turn/length_mean", of_turns.mean()),
        ("turn/length_max", of_turns.max()),
        ("group/reward_std_mean", Tally::of(spreads(groups, rewards)).mean()),
    ]);
    metrics.extend(self::dropped(dropped));
    metrics
}

/// Rollouts that were dropped.
pub(crate) fn dropped(dropped: &[Dropped]) -> Metrics {
    let failed = dropped.iter().filter(|dropped| dropped.reason.is_failure()).count();
    let mut metrics =
        some([("rollout/dropped", Some(dropped.len() as f64)), ("rollout/failed", Some(failed as f64))]);
    let reasons = by_reason(dropped).into_iter();
    metrics.extend(reasons.map(|(reason, count)| (format!("dropped/{reason}"), count as f64)));
    metrics
}

/// The rewards of each group.
fn by_group<'a>(groups: &'a [Group], rewards: &'a [f64]) -> impl Iterator<Item = &'a [f64]> {
    let mut rest = rewards;
    groups.iter().map(move |group| {
        let (own, others) = rest.split_at(group.finished().count().min(rest.len()));
        rest = others;
        own
    })
}

/// Groups whose rollouts all have the same reward. One that has a single rollout left is such a group.
pub(crate) fn zero_variance_groups(groups: &[Group], rewards: &[f64]) -> usize {
    by_group(groups, rewards).filter(|own| own.iter().all(|reward| Some(reward) == own.first())).count()
}

/// The standard deviation of the rewards of every group with two rollouts or more.
fn spreads<'a>(groups: &'a [Group], rewards: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    by_group(groups, rewards).filter_map(spread)
}

/// The standard deviation of two rewards or more, with n - 1 below. From the differences to the mean, so that equal
/// rewards have none.
fn spread(rewards: &[f64]) -> Option<f64> {
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    let squares: f64 = rewards.iter().map(|reward| (reward - mean).powi(2)).sum();
    (rewards.len() > 1).then(|| (squares / (rewards.len() - 1) as f64).sqrt())
}

/// How many versions behind `version` the action tokens of the batch were sampled.
pub(crate) fn staleness(groups: &[Group], version: WeightVersion) -> Metrics {
    let mut ages = [0_usize; AGES + 1];
    let mut all = Tally::default();
    for action in finished(groups).flat_map(|t| &t.segments).flat_map(|segment| segment.actions()) {
        let age = version.0.saturating_sub(action.version.0);
        ages[usize::try_from(age).unwrap_or(AGES).min(AGES)] += 1;
        all = Tally { sum: all.sum + age as f64, count: all.count + 1, largest: all.largest.max(age as f64) };
    }
    let mut metrics = some([("rollout/staleness_mean", all.mean()), ("rollout/staleness_max", all.max())]);
    let shares = ages.iter().enumerate().filter(|(_, tokens)| **tokens > 0).map(|(age, tokens)| {
        let more = if age == AGES { "_or_more" } else { "" };
        (format!("staleness/{age}{more}"), *tokens as f64 / all.count as f64)
    });
    metrics.extend(shares);
    metrics
}

/// The groups of earlier batches that were trained again, and how far behind `version` their action tokens are.
pub(crate) fn replayed(groups: &[Group], version: WeightVersion) -> Metrics {
    let actions = finished(groups).flat_map(|t| &t.segments).flat_map(|segment| segment.actions());
    let age = Tally::of(actions.map(|action| version.0.saturating_sub(action.version.0) as f64));
    some([
        ("replay/groups", Some(groups.len() as f64)),
        ("replay/staleness_mean", age.mean()),
        ("replay/staleness_max", age.max()),
    ])
}

/// The finished rollouts of the rows of each source.
pub(crate) fn sources(groups: &[Group], rewards: &[f64], key: &str) -> Metrics {
    let mut by_source: BTreeMap<&str, Vec<(&Trajectory, f64)>> = BTreeMap::new();
    for (trajectory, &reward) in finished(groups).zip(rewards) {
        if let Some(source) = source(&trajectory.task, key) {
            by_source.entry(source).or_default().push((trajectory, reward));
        }
    }
    let mut metrics = Metrics::new();
    for (source, rollouts) in by_source {
        let reward = Tally::of(rollouts.iter().map(|(_, reward)| *reward));
        let solved = Tally::of(rollouts.iter().map(|(t, _)| f64::from(u8::from(t.reward.solved()))));
        let all = [
            ("rollouts", Some(rollouts.len() as f64)),
            ("reward_mean", reward.mean()),
            ("solved_rate", solved.mean()),
        ];
        metrics.extend(some(all).into_iter().map(|(name, value)| (format!("source/{source}/{name}"), value)));
    }
    metrics
}

/// What the filter chose from.
pub(crate) fn before_filter(census: &Census) -> Metrics {
    let of = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    some([
        ("before_filter/groups", Some(census.groups as f64)),
        ("before_filter/kept_rate", of(census.groups - census.filtered.min(census.groups), census.groups)),
        ("before_filter/all_solved_rate", of(census.all_solved, census.groups)),
        ("before_filter/none_solved_rate", of(census.none_solved, census.groups)),
        ("before_filter/solved_rate", of(census.solved, census.rollouts)),
    ])
}

/// What the curriculum makes of the prompts of the file.
pub(crate) fn curriculum(buckets: &Buckets) -> Metrics {
    some([
        ("curriculum/easy", Some(buckets.easy as f64)),
        ("curriculum/middle", Some(buckets.middle as f64)),
        ("curriculum/hard", Some(buckets.hard as f64)),
        ("curriculum/unseen", Some(buckets.unseen as f64)),
    ])
}

/// What shaping did to the rollouts that were scored.
pub(crate) fn shaped(shaped: &Shaped) -> Metrics {
    let of = |part: f64| (shaped.scored > 0).then(|| part / shaped.scored as f64);
    some([
        ("rollout/raw_reward_mean", of(shaped.raw)),
        ("rollout/clipped_reward_rate", of(shaped.clipped as f64)),
        ("rollout/overlong_rate", of(shaped.overlong as f64)),
        ("rollout/overlong_penalty_mean", of(shaped.penalty)),
    ])
}

fn some<const N: usize>(metrics: [(&str, Option<f64>); N]) -> Metrics {
    metrics.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::trajectory;
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId};
    use molt_core::outcome::{DropReason, Outcome};
    use molt_core::trajectory::{Reward, Sampled, Segment};

    fn group(id: u64, source: Option<&str>, rollouts: &[(f64, &[usize], u64)]) -> Group {
        let fields = source.map(|name| ("data_source".to_owned(), name.to_owned())).into_iter().collect();
        let task = Task { id: id.to_string(), messages: Vec::new(), label: None, fields };
        let finished = |(member, (reward, turns, version)): (u32, &(f64, &[usize], u64))| {
            let mut segment = Segment::new(vec![1]);
            for (turn, &length) in (0..).zip(*turns) {
                let sampled = Sampled { token: 2, logprob: -1.0, version: WeightVersion(*version) };
                segment.push_turn(turn, &vec![sampled; length]);
                segment.push_context(&[3]);
            }
            let rollout = RolloutId { group: GroupId(id), member };
            let reward = Reward::Scored { value: *reward, solved: *reward >= 1.0 };
            let turn_rewards = vec![0.0; turns.len()];
            let bare = trajectory(rollout, &task, vec![segment], reward);
            Outcome::Finished(Box::new(Trajectory { turn_rewards, ..bare }))
        };
        let outcomes = (0..).zip(rollouts).map(finished).collect();
        Group { id: GroupId(id), task: task.clone(), outcomes }
    }

    fn check(metrics: &Metrics, want: &[(&str, f64)]) {
        assert_eq!(
            metrics.keys().map(String::as_str).collect::<Vec<_>>(),
            want.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        );
        for (name, want) in want {
            assert!((metrics[*name] - want).abs() < 1e-12, "{name}: {} is not {want}", metrics[*name]);
        }
    }

    fn groups() -> [Group; 3] {
        [
            group(0, Some("a"), &[(1.0, &[2, 4], 5), (0.0, &[3], 4), (0.0, &[1, 1, 1], 5)]),
            group(1, Some("b"), &[(1.0, &[7], 5)]),
            group(2, None, &[(0.3, &[1], 1), (0.3, &[1], 5)]),
        ]
    }

    const REWARDS: [f64; 6] = [1.0, 0.0, 0.0, 1.0, 0.3, 0.3];

    /// By hand: rollouts of 6, 3, 3, 7, 1 and 1 tokens in 2, 1, 3, 1, 1 and 1 turns; nine turns with 21 tokens. Of two
    /// groups that have a spread: rewards 1, 0, 0 have the variance 1/3, equal ones have none.
    #[test]
    fn rollouts_turns_and_groups_are_populations_of_their_own() {
        let drop = |reason: DropReason| Dropped {
            rollout: RolloutId { group: GroupId(9), member: 0 },
            reason,
            detail: String::new(),
        };
        let dropped = [drop(DropReason::Filtered), drop(DropReason::Filtered), drop(DropReason::NoReward)];
        let std = (1.0_f64 / 3.0).sqrt() / 2.0;
        check(
            &rollouts(&groups(), &REWARDS, &dropped),
            &[
                ("dropped/filtered", 2.0),
                ("dropped/no-reward", 1.0),
                ("group/reward_std_mean", std),
                ("rollout/dropped", 3.0),
                ("rollout/failed", 1.0),
                ("rollout/finished", 6.0),
                ("rollout/length_max", 7.0),
                ("rollout/length_mean", 21.0 / 6.0),
                ("rollout/reward_std", ((2.18 - 2.6 * 2.6 / 6.0) / 5.0_f64).sqrt()),
                ("rollout/segments_mean", 1.0),
                // A prompt of one token, and one of the environment behind each turn.
                ("rollout/total_length_mean", (21.0 + 6.0 + 9.0) / 6.0),
                ("rollout/turns_max", 3.0),
                ("rollout/turns_mean", 9.0 / 6.0),
                ("turn/length_max", 7.0),
                ("turn/length_mean", 21.0 / 9.0),
            ],
        );
        let nothing = [("rollout/dropped", 0.0), ("rollout/failed", 0.0), ("rollout/finished", 0.0)];
        check(&rollouts(&[], &[], &[]), &nothing);
    }

    /// 17 tokens of version 5, three of 4 and one of 1, at version 5: the shares add up to 1.
    #[test]
    fn staleness_is_a_share_of_tokens() {
        let shares = [
            ("rollout/staleness_max", 4.0),
            ("rollout/staleness_mean", 7.0 / 21.0),
            ("staleness/0", 17.0 / 21.0),
            ("staleness/1", 3.0 / 21.0),
            ("staleness/4", 1.0 / 21.0),
        ];
        check(&staleness(&groups(), WeightVersion(5)), &shares);
        let far = staleness(&groups(), WeightVersion(20));
        check(
            &far,
            &[
                ("rollout/staleness_max", 19.0),
                ("rollout/staleness_mean", 15.0 + 7.0 / 21.0),
                ("staleness/8_or_more", 1.0),
            ],
        );
        check(&staleness(&[], WeightVersion(5)), &[]);
        let again =
            [("replay/groups", 3.0), ("replay/staleness_max", 4.0), ("replay/staleness_mean", 7.0 / 21.0)];
        check(&replayed(&groups(), WeightVersion(5)), &again);
        check(&replayed(&[], WeightVersion(5)), &[("replay/groups", 0.0)]);
    }

    #[test]
    fn every_source_has_its_own_rollouts() {
        check(
            &sources(&groups(), &REWARDS, "data_source"),
            &[
                ("source/a/reward_mean", 1.0 / 3.0),
                ("source/a/rollouts", 3.0),
                ("source/a/solved_rate", 1.0 / 3.0),
                ("source/b/reward_mean", 1.0),
                ("source/b/rollouts", 1.0),
                ("source/b/solved_rate", 1.0),
            ],
        );
        check(&sources(&groups(), &REWARDS, "origin"), &[]);
    }

    #[test]
    fn filter_curriculum_and_shaping_say_what_they_did() {
        let census =
            Census { groups: 8, filtered: 6, all_solved: 4, none_solved: 2, rollouts: 20, solved: 11 };
        check(
            &before_filter(&census),
            &[
                ("before_filter/all_solved_rate", 0.5),
                ("before_filter/groups", 8.0),
                ("before_filter/kept_rate", 0.25),
                ("before_filter/none_solved_rate", 0.25),
                ("before_filter/solved_rate", 0.55),
            ],
        );
        check(&before_filter(&Census::default()), &[("before_filter/groups", 0.0)]);
        check(
            &curriculum(&Buckets { easy: 4, middle: 3, hard: 2, unseen: 1 }),
            &[
                ("curriculum/easy", 4.0),
                ("curriculum/hard", 2.0),
                ("curriculum/middle", 3.0),
                ("curriculum/unseen", 1.0),
            ],
        );
        let done = Shaped { raw: 3.0, scored: 4, clipped: 1, overlong: 2, penalty: 1.0 };
        check(
            &shaped(&done),
            &[
                ("rollout/clipped_reward_rate", 0.25),
                ("rollout/overlong_penalty_mean", 0.25),
                ("rollout/overlong_rate", 0.5),
                ("rollout/raw_reward_mean", 0.75),
            ],
        );
        check(&shaped(&Shaped::default()), &[]);
    }
}
