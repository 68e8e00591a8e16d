//! MaxRL: the group's advantage over its pass rate, so that a prompt that is seldom solved counts as much as one often
//! solved.
//!
//! A = (R − mean) / mean over the rollouts of one group. With rewards of 0 and 1 the mean is the pass rate, and the
//! gradient is an unbiased estimate of that of a truncated log-likelihood of success (Tajwar et al. 2026, Maximum
//! Likelihood Reinforcement Learning, arXiv:2602.02710). A group without a success gives 0, as does one without a
//! failure, and a group of one.
//!
//! A pass rate needs rewards of at least 0. Where a group has lower ones, its lowest counts as 0 and the others are
//! shifted with it: −1 and 1 are 0 and 2, which is as 0 and 1.

use group_credit::{centred, estimates};
use molt_plugin::estimator::{Batch, Estimates, Estimator, Traits};

pub struct MaxRl;

impl Estimator for MaxRl {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        estimates(&batch, |rewards| {
            let lowest = rewards.iter().fold(0.0, |lowest: f64, &reward| lowest.min(reward));
            let mean = rewards.iter().map(|reward| reward - lowest).sum::<f64>() / rewards.len() as f64;
            // Without a success all are equal, and 0 / 0 is nothing.
            let scale = if mean > 0.0 { mean } else { 1.0 };
            centred(rewards).into_iter().map(|advantage| advantage / scale).collect()
        })
    }
}

molt_plugin::export_estimator!(MaxRl);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::estimator::Credit;
    use proptest::prelude::*;

    fn advantages(batch: Batch) -> Vec<f32> {
        match MaxRl::estimate(batch).expect("finite").advantages {
            Credit::PerRollout(advantages) => advantages,
            Credit::PerToken(_) => panic!("one number per rollout"),
        }
    }

    fn of(rewards: &[f32]) -> Vec<f32> {
        advantages(Batch::of(rewards, &vec![0; rewards.len()], &vec![1; rewards.len()]))
    }

    #[test]
    fn by_hand() {
        // One success in four: the mean is 1/4, so (3/4) / (1/4) and (−1/4) / (1/4).
        assert_eq!(of(&[1.0, 0.0, 0.0, 0.0]), [3.0, -1.0, -1.0, -1.0]);
        // Three in four: (1/4) / (3/4) and (−3/4) / (3/4).
        let third = 1.0 / 3.0;
        assert_eq!(of(&[1.0, 1.0, 0.0, 1.0]), [third, third, -1.0, third]);
        assert_eq!(
            advantages(Batch::of(&[1.0, 0.0, 5.0, 3.0], &[0, 0, 1, 1], &[1; 4])),
            [1.0, -1.0, 0.25, -0.25]
        );
    }

    #[test]
    fn nothing_to_learn() {
        for rewards in [[0.0; 4], [1.0; 4], [0.1; 4], [-1.0; 4]] {
            assert_eq!(of(&rewards), [0.0; 4]);
        }
        assert_eq!((of(&[2.0]), of(&[])), (vec![0.0], vec![]));
        assert_eq!(advantages(Batch::of(&[100.0, 1.0, 0.0], &[0; 3], &[0, 2, 2])), [0.0, 1.0, -1.0]);
    }

    #[test]
    fn the_lowest_of_negative_rewards_counts_as_nothing() {
        assert_eq!(of(&[1.0, -1.0, -1.0, -1.0]), of(&[1.0, 0.0, 0.0, 0.0]));
        assert_eq!(of(&[1e30, -1e30]), [1.0, -1.0]);
        assert_eq!(of(&[1e-30, 0.0]), [1.0, -1.0]);
    }

    proptest! {
        /// The paper's estimator on successes and failures: the mean score of the successes less the mean score of all.
        #[test]
        fn as_the_mean_over_successes(solved in prop::collection::vec(any::<bool>(), 1..30)) {
            let rewards: Vec<f32> = solved.iter().map(|&solved| f32::from(u8::from(solved))).collect();
            let (all, successes) = (solved.len() as f64, solved.iter().filter(|solved| **solved).count() as f64);
            for (found, &solved) in of(&rewards).iter().zip(&solved) {
                // n times the weight of the rollout's score, since the loss divides by n.
                let share = if solved { all / successes } else { 0.0 };
                let expected = if successes == 0.0 { 0.0 } else { share - 1.0 };
                prop_assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} is not {expected}");
            }
        }

        #[test]
        fn neither_order_nor_scale_matters(
            rewards in prop::collection::vec(-8i8..8, 2..20),
            turn in 0usize..20,
            scale in 0.01f32..100.0,
        ) {
            let mut rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
            let before = of(&rewards);
            let turn = turn % rewards.len();
            rewards.rotate_left(turn);
            rewards.iter_mut().for_each(|reward| *reward *= scale);
            let mut after = of(&rewards);
            after.rotate_right(turn);
            for (before, after) in before.iter().zip(&after) {
                prop_assert!((before - after).abs() <= 1e-5 * before.abs().max(1.0), "{before} became {after}");
            }
        }
    }
}
