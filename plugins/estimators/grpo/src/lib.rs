//! GRPO: how much better a rollout did than the other rollouts of its prompt.
//!
//! A = (R − mean) / (std + 1e-9) over the rollouts of one group, std with n − 1 in the denominator; one number
//! per rollout (Shao et al. 2024, DeepSeekMath, section 4.1.2). A group of one has nothing to compare with: 0.

use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Traits};

pub struct Grpo;

impl Estimator for Grpo {
    fn describe() -> Traits {
        Traits { needs_group: true, needs_values: false, whiten: false }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let mut advantages = vec![0.0; batch.rewards.len()];
        for members in batch.rollouts_by_group() {
            let rewards: Vec<f32> = members.iter().map(|&rollout| batch.rewards[rollout]).collect();
            for (rollout, advantage) in members.into_iter().zip(advantages_of(&rewards)) {
                advantages[rollout] = advantage;
            }
        }
        let returns = Credit::PerRollout(advantages.clone());
        Ok(Estimates { advantages: Credit::PerRollout(advantages), returns })
    }
}

molt_plugin::export_estimator!(Grpo);

/// The advantages of one group: mean first, then the sum of squares about it, both in f64.
pub fn advantages_of(rewards: &[f32]) -> Vec<f32> {
    if rewards.len() < 2 {
        return vec![0.0; rewards.len()];
    }
    let count = rewards.len() as f64;
    let mean = rewards.iter().map(|&reward| f64::from(reward)).sum::<f64>() / count;
    let squares: f64 = rewards.iter().map(|&reward| (f64::from(reward) - mean).powi(2)).sum();
    let scale = (squares / (count - 1.0)).sqrt() + 1e-9;
    rewards.iter().map(|&reward| ((f64::from(reward) - mean) / scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_success_in_four() {
        // By hand: mean 1/4; squares 9/16 + 3/16 = 3/4; std sqrt(3/4 / 3) = 1/2; A = 3/4 / 1/2, −1/4 / 1/2.
        assert_eq!(advantages_of(&[1.0, 0.0, 0.0, 0.0]), [1.5, -0.5, -0.5, -0.5]);
    }

    #[test]
    fn two_groups_out_of_order_and_a_group_of_one() {
        // Rewards 1 and 0: mean 1/2, std sqrt(1/4 + 1/4) = 1/√2, so A = ±1/√2. The group of one: 0.
        let batch = Batch {
            rewards: vec![1.0, 0.5, 0.0],
            groups: vec![0, 1, 0],
            segment_rollouts: vec![0, 1, 2],
            segment_offsets: vec![0, 1, 2, 3],
            turns: vec![0; 3],
            turn_rewards: vec![1.0, 0.5, 0.0],
            turn_offsets: vec![0, 1, 2, 3],
            kl: vec![],
            values: vec![],
            gamma: 1.0,
            lambda: 1.0,
            kl_coef: 0.0,
        };
        let half = std::f32::consts::FRAC_1_SQRT_2;
        let expected = Credit::PerRollout(vec![half, 0.0, -half]);
        let estimate = Grpo::estimate(batch).expect("GRPO cannot fail");
        assert_eq!((&estimate.advantages, &estimate.returns), (&expected, &expected));
    }

    #[test]
    fn a_group_without_spread_teaches_nothing() {
        // 0.1 has no exact f32: a mean that is off by one unit in the last place must not become ±1.
        assert_eq!(advantages_of(&[0.1; 7]), [0.0; 7]);
        assert_eq!(advantages_of(&[2.0]), [0.0]);
        assert!(advantages_of(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn order_does_not_matter(mut rewards in prop::collection::vec(-10f32..10.0, 2..20), turn in 0usize..20) {
            let before = advantages_of(&rewards);
            let turn = turn % rewards.len();
            rewards.rotate_left(turn);
            let mut after = advantages_of(&rewards);
            after.rotate_right(turn);
            for (a, b) in before.iter().zip(&after) {
                prop_assert!((a - b).abs() <= 1e-5, "{a} became {b}");
            }
        }

        #[test]
        fn mean_0_and_spread_1_whatever_the_scale(
            rewards in prop::collection::vec(-10f32..10.0, 2..20),
            scale in 0.01f32..100.0,
        ) {
            let scaled: Vec<f32> = rewards.iter().map(|r| r * scale).collect();
            let advantages = advantages_of(&scaled);
            let sum: f64 = advantages.iter().map(|&a| f64::from(a)).sum();
            let squares: f64 = advantages.iter().map(|&a| f64::from(a).powi(2)).sum();
            prop_assert!(sum.abs() < 1e-4);
            let spread = rewards.iter().fold(f32::MIN, |m, &r| m.max(r)) - rewards.iter().fold(f32::MAX, |m, &r| m.min(r));
            if spread > 0.01 {
                prop_assert!((squares - (advantages.len() as f64 - 1.0)).abs() < 1e-3);
            }
        }
    }
}
