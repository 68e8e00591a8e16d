//! Dr. GRPO: how much better a rollout did than the mean of its prompt's rollouts, without a division.
//!
//! A = R − mean over the rollouts of one group (Liu et al. 2025, Understanding R1-Zero-Like Training, section 3.3). A
//! group of one has nothing to compare with: 0. The paper's other half, a loss that is not divided by the length of an
//! answer, is the aggregation of the loss.

use group_credit::{centred, estimates};
use molt_plugin::estimator::{Batch, Estimates, Estimator, Traits};

pub struct DrGrpo;

impl Estimator for DrGrpo {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        estimates(&batch, centred)
    }
}

molt_plugin::export_estimator!(DrGrpo);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::estimator::Credit;
    use proptest::prelude::*;

    fn advantages(batch: Batch) -> Vec<f32> {
        match DrGrpo::estimate(batch).expect("finite").advantages {
            Credit::PerRollout(advantages) => advantages,
            Credit::PerToken(_) => panic!("one number per rollout"),
        }
    }

    fn of(rewards: &[f32]) -> Vec<f32> {
        advantages(Batch::of(rewards, &vec![0; rewards.len()], &vec![1; rewards.len()]))
    }

    #[test]
    fn golden_groups() {
        // Made by running Molt 0.1.6, and by hand: the means are 1/4, 1/2 and 4.
        assert_eq!(of(&[1.0, 0.0, 0.0, 0.0]), [0.75, -0.25, -0.25, -0.25]);
        let two = Batch::of(&[1.0, 0.0, 5.0, 3.0], &[0, 0, 1, 1], &[1; 4]);
        assert_eq!(advantages(two), [0.5, -0.5, 1.0, -1.0]);
    }

    #[test]
    fn a_rollout_of_two_segments_is_one_rollout() {
        // Molt 0.1.6: .5, .5, −.5 for the tokens of two rollouts, and 0 for a group of one.
        let batch = Batch {
            segment_rollouts: vec![0, 0, 1, 2, 2],
            segment_offsets: vec![0, 1, 2, 3, 4, 5],
            turns: vec![0; 5],
            ..Batch::of(&[1.0, 0.0, 0.5], &[0, 0, 1], &[])
        };
        assert_eq!(advantages(batch), [0.5, -0.5, 0.0]);
        // Four rollouts in six rows have the mean 0.5, not 0.667.
        let batch = Batch {
            segment_rollouts: vec![0, 0, 1, 2, 2, 3],
            segment_offsets: vec![0, 1, 2, 3, 4, 5, 6],
            turns: vec![0; 6],
            ..Batch::of(&[1.0, 0.0, 1.0, 0.0], &[0; 4], &[])
        };
        assert_eq!(advantages(batch), [0.5, -0.5, 0.5, -0.5]);
    }

    #[test]
    fn nothing_to_compare_with() {
        assert_eq!(of(&[0.1; 7]), [0.0; 7]);
        assert_eq!(of(&[2.0]), [0.0]);
        assert_eq!(advantages(Batch::of(&[100.0, 1.0], &[0, 0], &[0, 2])), [0.0, 0.0]);
    }

    #[test]
    fn rewards_too_far_apart_are_told() {
        let batch = Batch::of(&[f32::MAX, f32::MAX, f32::MIN, f32::MIN], &[0; 4], &[1; 4]);
        assert_eq!(advantages(batch)[0], f32::MAX);
        let mut rewards = [f32::MIN; 4];
        rewards[0] = f32::MAX;
        let error = DrGrpo::estimate(Batch::of(&rewards, &[0; 4], &[1; 4])).expect_err("3/2 of the most");
        assert!(error.contains("too large"), "{error}");
    }

    proptest! {
        #[test]
        fn as_the_mean_difference_to_all(rewards in prop::collection::vec(-10f32..10.0, 1..20)) {
            for (found, &own) in of(&rewards).iter().zip(&rewards) {
                let all = rewards.iter().map(|&other| f64::from(own) - f64::from(other)).sum::<f64>();
                prop_assert!((f64::from(*found) - all / rewards.len() as f64).abs() < 1e-6);
            }
        }

        #[test]
        fn order_and_a_shift_do_not_matter_and_a_scale_scales(
            rewards in prop::collection::vec(-8i8..8, 2..20),
            turn in 0usize..20,
            shift in -8i8..8,
        ) {
            let mut rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
            let before = of(&rewards);
            let turn = turn % rewards.len();
            rewards.rotate_left(turn);
            rewards.iter_mut().for_each(|reward| *reward = (*reward + f32::from(shift)) * 3.0);
            let mut after = of(&rewards);
            after.rotate_right(turn);
            for (before, after) in before.iter().zip(&after) {
                prop_assert!((3.0 * before - after).abs() <= 1e-5, "{before} became {after}");
            }
        }
    }
}
