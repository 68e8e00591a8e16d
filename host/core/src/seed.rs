//! One run seed, split without overlap for every consumer of randomness.

use crate::ids::{GroupId, RolloutId};

/// What a derived seed is for. Two purposes never share a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Sampling the tokens of one turn of one rollout.
    Turn { rollout: RolloutId, turn: u32 },
    /// A plugin's virtual randomness during one rollout.
    Plugin { rollout: RolloutId },
    /// The order of the rows in one pass over the data.
    Shuffle { pass: u64 },
    /// The part of a file that comes in one pass over the data.
    Part { pass: u64, file: u64 },
    /// Which of the easy and the hard prompts come in one pass over the data.
    Curriculum { pass: u64 },
    /// Whether one more of the easy, or of the hard, prompts comes than the whole number of their share.
    Share { pass: u64, is_hard: bool },
    /// Which groups are trained again in one step.
    Replay { step: u64 },
    /// The order in which groups of this batch and of earlier ones are trained in one step.
    Mix { step: u64 },
    /// Random initial weights.
    Init,
    /// One evaluation rollout: kept apart so that evaluating does not change training.
    Eval { row: u64, sample: u32, turn: u32 },
    /// A plugin's virtual randomness during one evaluation rollout.
    EvalPlugin { row: u64, sample: u32 },
    /// A reward's virtual randomness while it scores a group.
    GroupPlugin { group: GroupId },
    /// A reward's virtual randomness while it scores the evaluation rollouts of one row.
    EvalGroupPlugin { row: u64 },
}

/// A 64-bit seed for `purpose` under the run's seed.
pub fn derive(run: u64, purpose: Purpose) -> u64 {
    let rollout = |r: RolloutId| {
        let GroupId(group) = r.group;
        [group, u64::from(r.member)]
    };
    let words = match purpose {
        Purpose::Turn { rollout: r, turn } => [1, rollout(r)[0], rollout(r)[1], u64::from(turn)],
        Purpose::Plugin { rollout: r } => [2, rollout(r)[0], rollout(r)[1], 0],
        Purpose::Shuffle { pass } => [3, pass, 0, 0],
        Purpose::Part { pass, file } => [9, pass, file, 0],
        Purpose::Curriculum { pass } => [10, pass, 0, 0],
        Purpose::Share { pass, is_hard } => [13, pass, u64::from(is_hard), 0],
        Purpose::Replay { step } => [11, step, 0, 0],
        Purpose::Mix { step } => [12, step, 0, 0],
        Purpose::Init => [4, 0, 0, 0],
        Purpose::Eval { row, sample, turn } => [5, row, u64::from(sample), u64::from(turn)],
        Purpose::EvalPlugin { row, sample } => [6, row, u64::from(sample), 0],
        Purpose::GroupPlugin { group: GroupId(group) } => [7, group, 0, 0],
        Purpose::EvalGroupPlugin { row } => [8, row, 0, 0],
    };
    // The run is mixed twice, or run 1 for purpose 2 would be run 2 for purpose 1.
    words.iter().fold(mix(mix(run)), |state, word| mix(state ^ mix(*word)))
}

/// A number from 0 to below 1, uniform over seeds.
pub fn unit(seed: u64) -> f64 {
    (mix(seed) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random order of `0..len` (Fisher–Yates), the same for the same seed on every machine.
pub fn permutation(seed: u64, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for i in (1..len).rev() {
        let word = mix(seed ^ mix(i as u64));
        // The high half of word * (i + 1) is uniform on 0..=i up to 2^-64 * (i + 1).
        let j = (u128::from(word) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection that scrambles every bit.
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn splitmix_reference() {
        // First output of SplitMix64 seeded with 1234567, from the reference implementation.
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
    }

    #[test]
    fn streams_do_not_meet() {
        let mut seen = HashSet::new();
        for run in 0..3 {
            for group in 0..20 {
                for member in 0..4 {
                    let rollout = RolloutId { group: GroupId(group), member };
                    assert!(seen.insert(derive(run, Purpose::Plugin { rollout })));
                    for turn in 0..4 {
                        assert!(seen.insert(derive(run, Purpose::Turn { rollout, turn })));
                        assert!(seen.insert(derive(run, Purpose::Eval { row: group, sample: member, turn })));
                    }
                }
            }
            for row in 0..20 {
                assert!(seen.insert(derive(run, Purpose::GroupPlugin { group: GroupId(row) })));
                assert!(seen.insert(derive(run, Purpose::EvalGroupPlugin { row })));
                assert!(seen.insert(derive(run, Purpose::Replay { step: row })));
                assert!(seen.insert(derive(run, Purpose::Mix { step: row })));
                for is_hard in [false, true] {
                    assert!(seen.insert(derive(run, Purpose::Share { pass: row, is_hard })));
                }
                for sample in 0..4 {
                    assert!(seen.insert(derive(run, Purpose::EvalPlugin { row, sample })));
                }
            }
            assert!(seen.insert(derive(run, Purpose::Init)));
            assert!(seen.insert(derive(run, Purpose::Shuffle { pass: 0 })));
        }
    }

    #[test]
    fn numbers_are_spread_over_the_unit() {
        let mut counts = [0_u32; 10];
        for pass in 0..10_000 {
            let number = unit(derive(3, Purpose::Share { pass, is_hard: pass % 2 == 0 }));
            counts[(number * 10.0) as usize] += 1;
        }
        // 1000 expected of each; 150 is five standard deviations.
        assert!(counts.iter().all(|n| n.abs_diff(1000) < 150), "{counts:?}");
    }

    #[test]
    fn every_order_is_about_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for pass in 0..6000 {
            let order = permutation(derive(3, Purpose::Shuffle { pass }), 3);
            *counts.entry(order).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // 1000 expected of each; 150 is five standard deviations.
        assert!(counts.values().all(|n| n.abs_diff(1000) < 150), "{counts:?}");
    }

    #[test]
    fn an_order_holds_everything_once_and_repeats() {
        for len in [0, 1, 2, 100] {
            let order = permutation(9, len);
            assert_eq!(order, permutation(9, len));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..len).collect::<Vec<_>>());
        }
        assert_ne!(permutation(9, 100), permutation(10, 100));
    }
}
