//! GRPO: how much better a rollout did than the other rollouts of its prompt.
//!
//! A = (R − mean) / (std + 1e-9) over the rollouts of one group, std with n − 1 in the denominator; one number
//! per rollout (Shao et al. 2024, DeepSeekMath, section 4.1.2). A group of one has nothing to compare with: 0.

use group_credit::{estimates, standardised};
use molt_plugin::estimator::{Batch, Estimates, Estimator, Traits};

pub struct Grpo;

impl Estimator for Grpo {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        estimates(&batch, standardised)
    }
}

molt_plugin::export_estimator!(Grpo);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::estimator::Credit;
    use proptest::prelude::*;

    fn advantages(batch: Batch) -> Vec<f32> {
        let Estimates { advantages, returns } = Grpo::estimate(batch).expect("finite");
        assert_eq!(advantages, returns);
        let Credit::PerRollout(advantages) = advantages else { panic!("one number per rollout") };
        advantages
    }

    fn of(rewards: &[f32]) -> Vec<f32> {
        advantages(Batch::of(rewards, &vec![0; rewards.len()], &vec![1; rewards.len()]))
    }

    #[test]
    fn one_success_in_four() {
        // By hand: mean 1/4; squares 9/16 + 3/16 = 3/4; std sqrt(3/4 / 3) = 1/2; A = 3/4 / 1/2, −1/4 / 1/2.
        assert_eq!(of(&[1.0, 0.0, 0.0, 0.0]), [1.5, -0.5, -0.5, -0.5]);
    }

    #[test]
    fn golden_groups_of_two_and_one() {
        // Made by running Molt 0.1.6: .707107, −.707107 and 0, however many segments a rollout has.
        let batch = Batch {
            segment_rollouts: vec![0, 0, 1, 2, 2],
            segment_offsets: vec![0, 1, 2, 3, 4, 5],
            turns: vec![0; 5],
            ..Batch::of(&[1.0, 0.0, 0.5], &[0, 0, 1], &[])
        };
        let found = advantages(batch);
        let half = std::f32::consts::FRAC_1_SQRT_2;
        for (found, expected) in found.iter().zip([half, -half, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }

    #[test]
    fn a_group_without_spread_teaches_nothing() {
        // 0.1 has no exact f32: a mean that is off by one unit in the last place must not become ±1.
        assert_eq!(of(&[0.1; 7]), [0.0; 7]);
        assert_eq!(of(&[2.0]), [0.0]);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn a_rollout_that_said_nothing_shifts_nobody() {
        let batch = Batch::of(&[100.0, 1.0, 0.0], &[0, 0, 0], &[0, 2, 2]);
        assert_eq!(advantages(batch)[0], 0.0);
        assert_eq!(advantages(Batch::of(&[100.0, 1.0], &[0, 0], &[0, 2])), [0.0, 0.0]);
    }

    /// From the differences of all pairs, without a mean: the variance is half the mean squared difference.
    fn slow(rewards: &[f32]) -> Vec<f64> {
        let count = rewards.len() as f64;
        let differences = |from: f32| rewards.iter().map(move |&to| f64::from(from) - f64::from(to));
        let squares: f64 = rewards.iter().flat_map(|&from| differences(from)).map(|d| d * d).sum();
        let deviation = (squares / (2.0 * count * (count - 1.0))).sqrt();
        rewards.iter().map(|&own| differences(own).sum::<f64>() / count / (deviation + 1e-9)).collect()
    }

    proptest! {
        #[test]
        fn as_the_slow_derivation(rewards in prop::collection::vec(-10f32..10.0, 2..20)) {
            for (found, expected) in of(&rewards).iter().zip(slow(&rewards)) {
                prop_assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} is not {expected}");
            }
        }

        #[test]
        fn neither_order_nor_a_shift_nor_a_scale_matters(
            rewards in prop::collection::vec(-8i8..8, 2..20),
            turn in 0usize..20,
            shift in -8i8..8,
            scale in 0.01f32..100.0,
        ) {
            let mut rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
            let before = of(&rewards);
            let turn = turn % rewards.len();
            rewards.rotate_left(turn);
            rewards.iter_mut().for_each(|reward| *reward = (*reward + f32::from(shift)) * scale);
            let mut after = of(&rewards);
            after.rotate_right(turn);
            for (before, after) in before.iter().zip(&after) {
                prop_assert!((before - after).abs() <= 1e-5, "{before} became {after}");
            }
        }
    }
}
