//! Estimators: turn the rewards of one training batch into advantages.

use std::ops::Range;

pub use crate::bindings::estimator::exports::molt::plugin::estimator::{
    Batch, Credit, Estimates, Guest as Estimator, Traits,
};

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
            rewards: vec![1.0, 0.0, 0.5],
            groups: vec![1, 0, 1],
            segment_rollouts: vec![0, 1, 0, 2],
            segment_offsets: vec![0, 2, 5, 6, 6],
            turns: vec![0, 0, 0, 0, 0, 1],
            turn_rewards: vec![0.75, 0.25, 0.0, 0.5],
            turn_offsets: vec![0, 2, 3, 4],
            kl: Vec::new(),
            values: Vec::new(),
            gamma: 1.0,
            lambda: 1.0,
            kl_coef: 0.0,
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
        let empty = Batch {
            rewards: Vec::new(),
            groups: Vec::new(),
            segment_rollouts: Vec::new(),
            segment_offsets: Vec::new(),
            turns: Vec::new(),
            turn_rewards: Vec::new(),
            turn_offsets: vec![0],
            ..batch()
        };
        assert_eq!((empty.tokens(), empty.segments().count()), (0, 0));
        assert!(empty.rollouts_by_group().is_empty());
    }
}
