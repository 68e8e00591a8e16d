//! Dynamic sampling: groups from which little can be learnt are given up whole, and the prompts that come next take
//! their place (DAPO, Yu et al. 2025, section 3.2).

use crate::error::RolloutError;
use molt_core::outcome::Group;
use molt_core::settings::FilterBy;
use serde::{Deserialize, Serialize};

/// Which groups are kept: those with a mean inside an open interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFilter {
    pub by: FilterBy,
    pub low: f64,
    pub high: f64,
    /// The reward of an output that could not be scored.
    pub lowest: f64,
    /// Groups that may be filtered between two batches.
    pub max_refills: usize,
}

/// Means so near a bound are on it: those of equal rewards are off by rounding.
const ROUNDING: f64 = 1e-9;

impl GroupFilter {
    /// Why a group with finished rollouts is not kept; None if it is.
    pub(crate) fn refuses(&self, group: &Group) -> Option<String> {
        let (what, value): (_, fn(f64, bool) -> f64) = match self.by {
            FilterBy::Off => return None,
            FilterBy::PassRate => ("pass rate", |_, solved| f64::from(u8::from(solved))),
            FilterBy::Reward => ("mean reward", |reward, _| reward),
        };
        let (mut sum, mut count) = (0.0, 0.0);
        for trajectory in group.finished() {
            sum += value(trajectory.reward.value(self.lowest), trajectory.reward.solved());
            count += 1.0;
        }
        let mean = sum / f64::max(count, 1.0);
        let slack = |bound: f64| ROUNDING * f64::max(bound.abs(), 1.0);
        let kept = mean > self.low + slack(self.low) && mean < self.high - slack(self.high);
        (!kept).then(|| format!("a {what} of {mean:.3} is not between {} and {}", self.low, self.high))
    }

    /// # Errors
    /// If so many groups were filtered that the run should not go on.
    pub(crate) fn bound(&self, filtered: usize) -> Result<(), RolloutError> {
        match filtered > self.max_refills {
            true => Err(RolloutError::Filtered { filtered, max: self.max_refills }),
            false => Ok(()),
        }
    }
}

/// The groups that ended between two batches with enough finished rollouts, before any was filtered.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Census {
    pub groups: usize,
    /// Of these, the ones that were filtered.
    pub filtered: usize,
    /// Of these, the ones all of whose finished rollouts are solved, and none.
    pub all_solved: usize,
    pub none_solved: usize,
    /// Their finished rollouts, and how many of these are solved.
    pub rollouts: usize,
    pub solved: usize,
}

impl Census {
    pub(crate) fn enter(&mut self, group: &Group) {
        let rollouts = group.finished().count();
        let solved = group.finished().filter(|trajectory| trajectory.reward.solved()).count();
        self.groups += 1;
        self.all_solved += usize::from(solved == rollouts);
        self.none_solved += usize::from(solved == 0);
        self.rollouts += rollouts;
        self.solved += solved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId};
    use molt_core::outcome::{DropReason, Dropped, Outcome};
    use molt_core::trajectory::{Reward, Trajectory};

    fn group(rewards: &[Option<f64>]) -> Group {
        let task = Task { id: "1".into(), messages: vec![], label: None, fields: vec![] };
        let outcome = |(member, value): (u32, &Option<f64>)| {
            let rollout = RolloutId { group: GroupId(0), member };
            let Some(value) = *value else {
                let (reason, detail) = (DropReason::NoActionTokens, String::new());
                return Outcome::Dropped(Dropped { rollout, reason, detail });
            };
            let reward = match value.is_nan() {
                true => Reward::Invalid { reason: String::new() },
                false => Reward::Scored { value, solved: value >= 1.0 },
            };
            Outcome::Finished(Box::new(Trajectory {
                rollout,
                task: task.clone(),
                segments: vec![],
                messages: vec![],
                completion: String::new(),
                truncated: false,
                reward,
                turn_rewards: vec![],
                metrics: [].into(),
            }))
        };
        let outcomes = (0..).zip(rewards).map(outcome).collect();
        Group { id: GroupId(0), task: task.clone(), outcomes }
    }

    #[test]
    fn a_group_is_kept_inside_the_open_interval() {
        let filter = |by, low, high| GroupFilter { by, low, high, lowest: -1.0, max_refills: 1 };
        let kept = |filter: GroupFilter, rewards: &[Option<f64>]| filter.refuses(&group(rewards)).is_none();
        let rate = filter(FilterBy::PassRate, 0.0, 1.0);
        assert!(kept(rate, &[Some(1.0), Some(0.0)]));
        assert!(!kept(rate, &[Some(1.0), Some(1.0)]) && !kept(rate, &[Some(0.5), Some(0.0)]));
        // A dropped rollout is neither solved nor failed, one that cannot be scored is failed.
        assert!(!kept(rate, &[Some(1.0), None, Some(1.0)]));
        assert!(kept(rate, &[Some(1.0), Some(f64::NAN)]));
        assert!(!kept(filter(FilterBy::PassRate, 0.0, 0.5), &[Some(1.0), Some(0.0)]), "the bounds are out");
        let mean = filter(FilterBy::Reward, 0.1, 1.0);
        assert!(kept(mean, &[Some(0.9), Some(0.1)]));
        // The sum of ten times 0.1 in float64 is not 1, nor is the mean of three exactly 0.1.
        for count in [3, 7, 8, 10] {
            assert!(!kept(mean, &vec![Some(0.1); count]), "{count} times the bound");
        }
        // (1 + (-1)) / 2 = 0 with the lowest reward for what cannot be scored.
        assert!(!kept(mean, &[Some(1.0), Some(f64::NAN)]));
        assert!(kept(filter(FilterBy::Off, 0.0, 0.0), &[Some(1.0)]));
    }

    #[test]
    fn the_census_counts_before_the_filter() {
        let mut census = Census::default();
        let all: [&[Option<f64>]; 4] = [
            &[Some(1.0), Some(1.0)],
            &[Some(0.0), Some(0.0), Some(f64::NAN)],
            &[Some(1.0), None],
            &[Some(1.0), Some(0.0)],
        ];
        all.iter().for_each(|rewards| census.enter(&group(rewards)));
        let expected =
            Census { groups: 4, filtered: 0, all_solved: 2, none_solved: 1, rollouts: 8, solved: 4 };
        assert_eq!(census, expected);
    }
}
