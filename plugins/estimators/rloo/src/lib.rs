//! RLOO, leave-one-out REINFORCE: how much better a rollout did than the others of its prompt.
//!
//! A = R − (ΣR − R) / (n − 1) over the n rollouts of one group (Kool et al. 2019; Ahmadian et al. 2024, Back to Basics,
//! section 2.3). What the others got does not depend on the rollout, so the gradient is unbiased. A rollout that is alone
//! in its group, as when the others failed, has no baseline: its advantage is its reward.

use group_credit::{estimates, leave_one_out};
use molt_plugin::estimator::{Batch, Estimates, Estimator, Traits};

pub struct Rloo;

impl Estimator for Rloo {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        estimates(&batch, leave_one_out)
    }
}

molt_plugin::export_estimator!(Rloo);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::estimator::Credit;
    use proptest::prelude::*;

    fn advantages(batch: Batch) -> Vec<f32> {
        match Rloo::estimate(batch).expect("finite").advantages {
            Credit::PerRollout(advantages) => advantages,
            Credit::PerToken(_) => panic!("one number per rollout"),
        }
    }

    fn of(rewards: &[f32]) -> Vec<f32> {
        advantages(Batch::of(rewards, &vec![0; rewards.len()], &vec![1; rewards.len()]))
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn golden_groups() {
        // Made by running Molt 0.1.6.
        let third = -1.0 / 3.0;
        close(&of(&[1.0, 0.0, 0.0, 0.0]), &[1.0, third, third, third]);
        let two = Batch::of(&[1.0, 0.0, 5.0, 3.0], &[0, 0, 1, 1], &[1; 4]);
        close(&advantages(two), &[1.0, -1.0, 2.0, -2.0]);
    }

    #[test]
    fn golden_segments_and_a_group_of_one() {
        // Molt 0.1.6: 1, 1, −1 for the tokens of two rollouts, and .5, the reward itself, for the one that is alone.
        let batch = Batch {
            segment_rollouts: vec![0, 0, 1, 2, 2],
            segment_offsets: vec![0, 1, 2, 3, 4, 5],
            turns: vec![0; 5],
            ..Batch::of(&[1.0, 0.0, 0.5], &[0, 0, 1], &[])
        };
        close(&advantages(batch), &[1.0, -1.0, 0.5]);
    }

    #[test]
    fn equal_rewards_and_silent_rollouts() {
        assert_eq!(of(&[0.1; 7]), [0.0; 7]);
        assert_eq!(advantages(Batch::of(&[100.0, 1.0, 0.0], &[0; 3], &[0, 2, 2])), [0.0, 1.0, -1.0]);
        // In 32 bits the mean square less the squared mean of these is noise of 1e-4.
        let mut rewards = [0.35; 8];
        rewards[7] = 0.95;
        close(&of(&rewards)[7..], &[0.6]);
    }

    proptest! {
        #[test]
        fn as_the_loop_over_the_others(rewards in prop::collection::vec(-10f32..10.0, 2..20)) {
            for (i, found) in of(&rewards).iter().enumerate() {
                let others = rewards.iter().enumerate().filter(|(j, _)| *j != i);
                let mean = others.map(|(_, &r)| f64::from(r)).sum::<f64>() / (rewards.len() - 1) as f64;
                prop_assert!((f64::from(*found) - (f64::from(rewards[i]) - mean)).abs() < 1e-5);
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
                prop_assert!((3.0 * before - after).abs() <= 1e-4, "{before} became {after}");
            }
        }
    }
}
