//! Estimators: turn the rewards of one training batch into advantages.

use std::ops::Range;

pub use crate::bindings::estimator::exports::molt::plugin::estimator::{
    Batch, Credit, Estimates, Guest as Estimator, Traits,
};
pub use crate::parameter::Parameter;

/// An estimator that needs nothing, leaves its advantages as they are, and has no parameters.
impl Default for Traits {
    fn default() -> Self {
        Self {
            needs_group: false,
            needs_values: false,
            uses_kl: false,
            whiten: false,
            parameters: Vec::new(),
        }
    }
}

/// The action tokens of one token sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Index into [`Batch::rewards`].
    pub rollout: usize,
    /// Indices into the per-token arrays.
    pub tokens: Range<usize>,
}

/// Views of a batch. The host has checked its lengths and indices.
impl Batch {
    /// Rollouts of one turn in one segment each, of so many action tokens: what most tests need.
    pub fn of(rewards: &[f32], groups: &[u32], tokens: &[u32]) -> Self {
        let mut segment_offsets = vec![0];
        segment_offsets.extend(tokens.iter().scan(0, |end, tokens| {
            *end += tokens;
            Some(*end)
        }));
        let rollouts = rewards.len() as u32;
        Self {
            rewards: rewards.to_vec(),
            groups: groups.to_vec(),
            segment_rollouts: (0..rollouts).collect(),
            segment_offsets,
            turns: vec![0; tokens.iter().sum::<u32>() as usize],
            turn_rewards: rewards.to_vec(),
            turn_offsets: (0..=rollouts).collect(),
            kl: Vec::new(),
            values: Vec::new(),
            kl_coef: 0.0,
            parameters: Vec::new(),
        }
    }

    /// The values of all parameters, in the order in which [`Estimator::describe`] declares them.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn parameter_values<const N: usize>(&self) -> Result<[f64; N], String> {
        let found = self.parameters.len();
        self.parameters
            .as_slice()
            .try_into()
            .map_err(|_| format!("{N} parameters are declared, and {found} given"))
    }

    /// Number of action tokens.
    pub fn tokens(&self) -> usize {
        self.segment_offsets.last().map_or(0, |&end| end as usize)
    }

    /// The segments in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.segment_rollouts.iter().zip(self.segment_offsets.windows(2)).map(|(&rollout, ends)| Segment {
            rollout: rollout as usize,
            tokens: ends[0] as usize..ends[1] as usize,
        })
    }

    /// The rollouts of each prompt group, as indices into [`Batch::rewards`].
    pub fn rollouts_by_group(&self) -> Vec<Vec<usize>> {
        let count = self.groups.iter().max().map_or(0, |&last| last as usize + 1);
        let mut groups = vec![Vec::new(); count];
        for (rollout, &group) in self.groups.iter().enumerate() {
            groups[group as usize].push(rollout);
        }
        groups
    }

    /// The action tokens of each rollout in the order they were sampled, over all of its segments.
    pub fn tokens_by_rollout(&self) -> Vec<Vec<usize>> {
        let mut rollouts = vec![Vec::new(); self.rewards.len()];
        for segment in self.segments() {
            rollouts[segment.rollout].extend(segment.tokens);
        }
        rollouts
    }

    /// What each turn of a rollout earned, by turn.
    pub fn turn_rewards_of(&self, rollout: usize) -> &[f32] {
        let offset = |at: usize| self.turn_offsets[at] as usize;
        &self.turn_rewards[offset(rollout)..offset(rollout + 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups; rollout 0 has two segments, of two and one tokens, and rollout 2 has no action token.
    fn batch() -> Batch {
        Batch {
            segment_rollouts: vec![0, 1, 0, 2],
            segment_offsets: vec![0, 2, 5, 6, 6],
            turns: vec![0, 0, 0, 0, 0, 1],
            turn_rewards: vec![0.75, 0.25, 0.0, 0.5],
            turn_offsets: vec![0, 2, 3, 4],
            ..Batch::of(&[1.0, 0.0, 0.5], &[1, 0, 1], &[])
        }
    }

    #[test]
    fn segments_groups_and_rollouts() {
        let batch = batch();
        assert_eq!(batch.tokens(), 6);
        assert_eq!(batch.segments().nth(1), Some(Segment { rollout: 1, tokens: 2..5 }));
        assert_eq!(batch.segments().count(), 4);
        assert_eq!(batch.rollouts_by_group(), [vec![1], vec![0, 2]]);
        assert_eq!(batch.tokens_by_rollout(), [vec![0, 1, 5], vec![2, 3, 4], vec![]]);
        assert_eq!(batch.turn_rewards_of(0), [0.75, 0.25]);
        assert_eq!(batch.turn_rewards_of(2), [0.5]);
    }

    #[test]
    fn an_empty_batch_has_nothing() {
        let empty = Batch::of(&[], &[], &[]);
        assert_eq!((empty.tokens(), empty.segments().count()), (0, 0));
        assert!(empty.rollouts_by_group().is_empty());
    }

    #[test]
    fn a_rollout_is_a_segment_of_one_turn() {
        let batch = Batch::of(&[1.0, 2.0], &[0, 0], &[3, 0]);
        assert_eq!(batch.tokens_by_rollout(), [vec![0, 1, 2], vec![]]);
        assert_eq!((batch.turns.len(), batch.turn_rewards_of(1)), (3, &[2.0][..]));
    }

    #[test]
    fn parameters_have_defaults_and_come_in_their_order() {
        let declared = [
            Parameter::float("gamma", 0.5, 0.0..=1.0, "discount"),
            Parameter::integer("window", -3, -8..=8, "tokens"),
            Parameter::boolean("centre", true, "subtract the mean"),
            Parameter::choice("over", &["tokens", "rollouts"], "what the mean is over"),
        ];
        let parameters = declared.iter().map(Parameter::default_value).collect();
        let batch = Batch { parameters, ..Batch::of(&[], &[], &[]) };
        assert_eq!(batch.parameter_values(), Ok([0.5, -3.0, 1.0, 0.0]));
        let error = batch.parameter_values::<1>().expect_err("there are four");
        assert_eq!(error, "1 parameters are declared, and 4 given");
    }
}
