//! On-policy distillation: each sampled token is worth as much as a teacher likes it better than the policy does.
//!
//! A_t = −kl_coef · (log π(t) − log π_teacher(t)), with the teacher in the reference model's place: the gradient is that
//! of the reverse KL to the teacher on the policy's own samples (Agarwal et al. 2024, On-Policy Distillation of Language
//! Models; Gu et al. 2024, MiniLLM). Rewards count for nothing, and there is no baseline, no discount and no whitening.

use group_credit::single;
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Traits};

pub struct OnPolicyDistill;

impl Estimator for OnPolicyDistill {
    fn describe() -> Traits {
        Traits { uses_kl: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        if batch.kl.len() != batch.tokens() {
            return Err("distillation learns from a teacher alone, and this run has none".to_owned());
        }
        let coefficient = -f64::from(batch.kl_coef);
        let advantages = batch.kl.iter().map(|&kl| single(coefficient * f64::from(kl)));
        let advantages: Vec<f32> = advantages.collect::<Result<_, _>>()?;
        let returns = Credit::PerToken(advantages.clone());
        Ok(Estimates { advantages: Credit::PerToken(advantages), returns })
    }
}

molt_plugin::export_estimator!(OnPolicyDistill);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(rewards: &[f32], tokens: &[u32], kl: &[f32], kl_coef: f32) -> Vec<f32> {
        let groups = vec![0; rewards.len()];
        let batch = Batch { kl: kl.to_vec(), kl_coef, ..Batch::of(rewards, &groups, tokens) };
        let Estimates { advantages, returns } = OnPolicyDistill::estimate(batch).expect("finite");
        assert_eq!(advantages, returns);
        let Credit::PerToken(advantages) = advantages else { panic!("one number per token") };
        advantages
    }

    #[test]
    fn golden_numbers() {
        // Made by running Molt 0.1.6, on the action tokens.
        let found = of(&[1.0, -0.5], &[3, 3], &[0.1, -0.2, 0.3, 0.4, 0.0, -0.1], 1.0);
        for (found, expected) in found.iter().zip([-0.1, 0.2, -0.3, -0.4, 0.0, 0.1]) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
    }

    #[test]
    fn without_a_teacher_it_says_so() {
        let error = OnPolicyDistill::estimate(Batch::of(&[1.0], &[0], &[2])).expect_err("no KL");
        assert!(error.contains("teacher"), "{error}");
        assert!(of(&[1.0], &[0], &[], 1.0).is_empty());
    }

    #[test]
    fn what_is_too_large_is_told() {
        let batch = Batch { kl: vec![1e30], kl_coef: 1e30, ..Batch::of(&[0.0], &[0], &[1]) };
        assert!(OnPolicyDistill::estimate(batch).expect_err("1e60").contains("too large"));
    }

    /// For a policy of few tokens the expected gradient is that of the reverse KL, here by differences.
    #[test]
    fn the_expected_gradient_is_that_of_the_reverse_kl() {
        let softmax = |logits: &[f64]| {
            let sum: f64 = logits.iter().map(|z| z.exp()).sum();
            logits.iter().map(|z| z.exp() / sum).collect::<Vec<f64>>()
        };
        let (policy, teacher) = ([0.3_f64, -0.2, 0.5], [0.2_f64, 0.5, 0.3]);
        let divergence = |logits: &[f64]| {
            let p = softmax(logits);
            p.iter().zip(&teacher).map(|(p, q)| p * (p.ln() - q.ln())).sum::<f64>()
        };
        let p = softmax(&policy);
        let kl: Vec<f32> = p.iter().zip(&teacher).map(|(p, q)| (p.ln() - q.ln()) as f32).collect();
        let advantages = of(&[0.0; 3], &[1, 1, 1], &kl, 1.0);
        // What is climbed: E[A · ∇ log π], which must be −∇KL.
        for (k, known) in [0.1388, -0.21958, 0.08078].into_iter().enumerate() {
            let score = |i: usize| f64::from(u8::from(i == k)) - p[k];
            let climbed: f64 = (0..3).map(|i| p[i] * f64::from(advantages[i]) * score(i)).sum();
            let moved = |by: f64| {
                let mut logits = policy;
                logits[k] += by;
                divergence(&logits)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!(
                (climbed + slope).abs() < 1e-6 && (slope - known).abs() < 1e-5,
                "{climbed} {slope} {known}"
            );
        }
    }

    proptest! {
        #[test]
        fn rewards_do_not_matter_and_the_coefficient_scales(
            kl in prop::collection::vec(-5f32..5.0, 6),
            rewards in prop::collection::vec(-5f32..5.0, 2),
        ) {
            let plain = of(&[0.0, 0.0], &[2, 4], &kl, 1.0);
            let scaled = of(&rewards, &[2, 4], &kl, 2.0);
            for (plain, scaled) in plain.iter().zip(&scaled) {
                prop_assert_eq!(2.0 * plain, *scaled);
            }
        }
    }
}
