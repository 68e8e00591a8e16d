//! Losses: what the action tokens of one optimiser step cost, and how that changes with their log-probabilities.

use std::ops::Range;

pub use crate::bindings::loss::exports::molt::plugin::loss::{Batch, Guest as Loss, Losses};

/// Views of a batch. The host has checked its lengths and offsets.
impl Batch {
    /// The action tokens of each segment, as indices into the per-token arrays.
    pub fn segments(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.segment_offsets.windows(2).map(|ends| ends[0] as usize..ends[1] as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_each_other() {
        let batch = |segment_offsets| Batch {
            logprobs: vec![-1.0; 3],
            sampled: vec![-1.0; 3],
            old: vec![-1.0; 3],
            advantages: vec![0.0; 3],
            segment_offsets,
        };
        let segments: Vec<_> = batch(vec![0, 2, 2, 3]).segments().collect();
        assert_eq!(segments, [0..2, 2..2, 2..3]);
        assert_eq!(batch(vec![0]).segments().count(), 0);
    }
}
