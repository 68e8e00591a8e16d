//! RLOO with weights by length, so that long answers do not add most of the gradient's noise.
//!
//! The variance of a rollout's gradient grows about as the number L of its action tokens, so the combination of the
//! gradients of one group that has the least variance, and the weights of which still sum to 1, has weights as 1 / L (He
//! et al. 2025, ΔL Normalization, arXiv:2509.07558). With n rollouts in the group,
//!
//! ```text
//! A(i) = n · L(i)^−alpha / Σ_j L(j)^−alpha · (R(i) − mean of the others' R)
//! ```
//!
//! The weights are 1 on average, whatever the lengths; that is what dividing each rollout by its own L does not keep.
//! alpha 0 is `rloo`, and so are equal lengths. The paper has the group's mean, or its deviation too, for a baseline; the
//! weights are the same. A rollout that is alone has weight 1 and no baseline: its advantage is its reward. The returns
//! have no weights.

use group_credit::{leave_one_out, members, single};
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Parameter, Traits};

pub struct RlooLength;

impl Estimator for RlooLength {
    fn describe() -> Traits {
        let doc = "how much less a long answer weighs: 0 not at all, 1 as the inverse of its length";
        let parameters = vec![Parameter::float("alpha", 1.0, 0.0..=1.0, doc)];
        Traits { needs_group: true, parameters, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let [alpha] = batch.parameter_values()?;
        let mut advantages = vec![0.0; batch.rewards.len()];
        let mut returns = advantages.clone();
        for group in members(&batch) {
            let rewards: Vec<f64> = group.iter().map(|member| member.reward).collect();
            let weights: Vec<f64> = group.iter().map(|member| (member.tokens as f64).powf(-alpha)).collect();
            let mean = weights.iter().sum::<f64>() / weights.len() as f64;
            for ((member, weight), own) in group.iter().zip(weights).zip(leave_one_out(&rewards)) {
                advantages[member.rollout] = single(weight / mean * own)?;
                returns[member.rollout] = single(own)?;
            }
        }
        Ok(Estimates { advantages: Credit::PerRollout(advantages), returns: Credit::PerRollout(returns) })
    }
}

molt_plugin::export_estimator!(RlooLength);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(batch: Batch, alpha: f64) -> (Vec<f32>, Vec<f32>) {
        let estimates = RlooLength::estimate(Batch { parameters: vec![alpha], ..batch }).expect("finite");
        match (estimates.advantages, estimates.returns) {
            (Credit::PerRollout(advantages), Credit::PerRollout(returns)) => (advantages, returns),
            other => panic!("one number per rollout, not {other:?}"),
        }
    }

    fn of(rewards: &[f32], tokens: &[u32], alpha: f64) -> Vec<f32> {
        estimate(Batch::of(rewards, &vec![0; rewards.len()], tokens), alpha).0
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn by_hand() {
        // Lengths 1, 2 and 4: inverses 1, 1/2 and 1/4 with sum 7/4, times 3: weights 12/7, 6/7 and 3/7.
        // Leave-one-out of 1, 0 and 0: 1, −1/2 and −1/2.
        close(&of(&[1.0, 0.0, 0.0], &[1, 2, 4], 1.0), &[12.0 / 7.0, -3.0 / 7.0, -1.5 / 7.0]);
        // With alpha 1/2 and lengths 1 and 4: 1 and 1/2 with sum 3/2, times 2: 4/3 and 2/3.
        close(&of(&[1.0, 0.0], &[1, 4], 0.5), &[4.0 / 3.0, -2.0 / 3.0]);
        let (_, returns) = estimate(Batch::of(&[1.0, 0.0], &[0, 0], &[1, 4]), 0.5);
        close(&returns, &[1.0, -1.0]);
    }

    #[test]
    fn a_length_is_that_of_all_segments() {
        // Rollout 0 has segments of 1 and 3 tokens, rollout 1 one of 4.
        let batch = Batch {
            segment_rollouts: vec![0, 1, 0],
            segment_offsets: vec![0, 1, 5, 8],
            turns: vec![0; 8],
            ..Batch::of(&[1.0, 0.0], &[0, 0], &[])
        };
        close(&estimate(batch, 1.0).0, &[1.0, -1.0]);
    }

    #[test]
    fn nothing_to_compare_with() {
        assert_eq!(of(&[0.1; 3], &[1, 2, 3], 1.0), [0.0; 3]);
        assert_eq!(of(&[0.5], &[7], 1.0), [0.5]);
        assert_eq!(of(&[9.0, 1.0, 0.0], &[0, 5, 5], 1.0), [0.0, 1.0, -1.0]);
        assert!(of(&[], &[], 1.0).is_empty());
    }

    proptest! {
        #[test]
        fn as_the_slow_loops_and_the_weights_average_to_1(
            rollouts in prop::collection::vec((-5f32..5.0, 1u32..50), 2..10),
            alpha in 0f64..=1.0,
        ) {
            let (rewards, tokens): (Vec<f32>, Vec<u32>) = rollouts.iter().copied().unzip();
            let count = rollouts.len() as f64;
            let mut weights = 0.0;
            for (i, found) in of(&rewards, &tokens, alpha).iter().enumerate() {
                let mut others = 0.0;
                let mut shares = 0.0;
                for (j, &(reward, length)) in rollouts.iter().enumerate() {
                    if j != i {
                        others += f64::from(reward) / (count - 1.0);
                    }
                    shares += (f64::from(tokens[i]) / f64::from(length)).powf(alpha);
                }
                weights += count / shares / count;
                let expected = count / shares * (f64::from(rewards[i]) - others);
                prop_assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} is not {expected}");
            }
            prop_assert!((weights - 1.0).abs() < 1e-9);
        }

        #[test]
        fn equal_lengths_and_alpha_0_are_leave_one_out(
            rewards in prop::collection::vec(-5f32..5.0, 2..10),
            tokens in prop::collection::vec(1u32..50, 10),
        ) {
            let values: Vec<f64> = rewards.iter().map(|&reward| f64::from(reward)).collect();
            let expected = leave_one_out(&values);
            let equal = of(&rewards, &vec![7; rewards.len()], 1.0);
            let unweighted = of(&rewards, &tokens[..rewards.len()], 0.0);
            for ((equal, unweighted), expected) in equal.iter().zip(&unweighted).zip(expected) {
                prop_assert!((f64::from(*equal) - expected).abs() < 1e-5);
                prop_assert!((f64::from(*unweighted) - expected).abs() < 1e-5);
            }
        }
    }
}
