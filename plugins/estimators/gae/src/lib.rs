//! GAE: how much better each action token did than a critic expected.
//!
//! r_t = −kl_coef · kl_t, plus R at the last action token of the rollout; with the critic's value V_t and V = 0 after
//! the end,
//!
//! ```text
//! δ_t = r_t + gamma · V_{t+1} − V_t        A_t = δ_t + gamma · lambda · A_{t+1}        return_t = A_t + V_t
//! ```
//!
//! (Schulman et al. 2016, equations 11, 12 and 16). t counts the action tokens of a rollout, in order and across its
//! segments: what an environment says between two turns neither discounts nor ends anything, and a rollout of several
//! segments is rewarded once. The host whitens the advantages over the batch; the returns, which the critic learns, are
//! as they are.

use group_credit::single;
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Parameter, Traits};

pub struct Gae;

impl Estimator for Gae {
    fn describe() -> Traits {
        let parameters = vec![
            Parameter::float("gamma", 1.0, 0.0..=1.0, "discount per action token"),
            Parameter::float("lambda", 1.0, 0.0..=1.0, "trace decay: 0 trusts the critic, 1 the reward"),
        ];
        Traits { needs_values: true, uses_kl: true, whiten: true, parameters, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let [gamma, lambda] = batch.parameter_values()?;
        let tokens = batch.tokens();
        if batch.values.len() != tokens {
            return Err("GAE needs the values of a critic".to_owned());
        }
        let mut advantages = vec![0.0; tokens];
        let mut returns = vec![0.0; tokens];
        for (tokens, &reward) in batch.tokens_by_rollout().iter().zip(&batch.rewards) {
            let mut earned = f64::from(reward);
            let (mut next_value, mut ahead) = (0.0, 0.0);
            for &token in tokens.iter().rev() {
                let kl = batch.kl.get(token).map_or(0.0, |&kl| f64::from(kl));
                let value = f64::from(batch.values[token]);
                let delta = earned - f64::from(batch.kl_coef) * kl + gamma * next_value - value;
                ahead = delta + gamma * lambda * ahead;
                advantages[token] = single(ahead)?;
                returns[token] = single(ahead + value)?;
                (earned, next_value) = (0.0, value);
            }
        }
        Ok(Estimates { advantages: Credit::PerToken(advantages), returns: Credit::PerToken(returns) })
    }
}

molt_plugin::export_estimator!(Gae);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(batch: Batch) -> (Vec<f32>, Vec<f32>) {
        let estimates = Gae::estimate(batch).expect("finite");
        match (estimates.advantages, estimates.returns) {
            (Credit::PerToken(advantages), Credit::PerToken(returns)) => (advantages, returns),
            other => panic!("one number per token, not {other:?}"),
        }
    }

    /// One rollout in one segment.
    fn of(
        reward: f32,
        values: &[f32],
        kl: &[f32],
        kl_coef: f32,
        parameters: [f64; 2],
    ) -> (Vec<f32>, Vec<f32>) {
        estimate(Batch {
            values: values.to_vec(),
            kl: kl.to_vec(),
            kl_coef,
            parameters: parameters.to_vec(),
            ..Batch::of(&[reward], &[0], &[values.len() as u32])
        })
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    // Made by running Molt 0.1.6, on the action tokens of the mask 1, 1, 0, 0, 1, 1.
    const VALUES: [f32; 4] = [0.5, -0.3, 0.7, 0.2];

    #[test]
    fn golden_numbers() {
        let (advantages, returns) = of(1.0, &VALUES, &[], 0.0, [1.0, 0.95]);
        close(&advantages, &[0.38465, 1.247, 0.26, 0.8]);
        close(&returns, &[0.88465, 0.947, 0.96, 1.0]);
        let (advantages, returns) = of(1.0, &VALUES, &[], 0.0, [1.0, 1.0]);
        close(&advantages, &[0.5, 1.3, 0.3, 0.8]);
        close(&returns, &[1.0; 4]);
    }

    #[test]
    fn golden_numbers_with_discount_and_kl() {
        let (advantages, returns) = of(1.0, &VALUES, &[0.1, 0.2, 0.5, 0.6], 0.1, [0.99, 0.9]);
        close(&advantages, &[0.145_158, 1.068_64, 0.107_34, 0.74]);
        close(&returns, &[0.645_158, 0.768_64, 0.807_34, 0.94]);
    }

    #[test]
    fn by_hand() {
        // The end is worth nothing, whatever a critic says of what follows: 1 − 0.9 = 0.1.
        let (advantages, returns) = of(1.0, &[0.5, -0.3, 0.9], &[], 0.0, [1.0, 0.95]);
        close(&[advantages[2], returns[2]], &[0.1, 1.0]);
        close(&of(1.0, &[0.0, 0.0], &[], 0.0, [1.0, 0.95]).0, &[0.95, 1.0]);
        // gamma · lambda = 1/2 over action tokens alone.
        close(&of(1.0, &[0.0; 4], &[], 0.0, [1.0, 0.5]).0, &[0.125, 0.25, 0.5, 1.0]);
    }

    #[test]
    fn a_rollout_of_several_segments_is_one() {
        // Rollout 0 has tokens 0, 1 and 3; rollout 2 has none.
        let batch = Batch {
            segment_rollouts: vec![0, 1, 0, 2],
            segment_offsets: vec![0, 2, 3, 4, 4],
            turns: vec![0; 4],
            values: vec![0.5, -0.3, 0.25, 0.7],
            parameters: vec![0.9, 0.8],
            ..Batch::of(&[1.0, -1.0, 7.0], &[0; 3], &[])
        };
        let (advantages, returns) = estimate(batch);
        let alone = of(1.0, &[0.5, -0.3, 0.7], &[], 0.0, [0.9, 0.8]);
        close(&[advantages[0], advantages[1], advantages[3]], &alone.0);
        close(&[returns[0], returns[1], returns[3]], &alone.1);
        close(&[advantages[2], returns[2]], &[-1.25, -1.0]);
    }

    #[test]
    fn without_a_critic_it_says_so() {
        let batch = Batch { parameters: vec![1.0, 1.0], ..Batch::of(&[1.0], &[0], &[3]) };
        assert!(Gae::estimate(batch).expect_err("no values").contains("critic"));
    }

    #[test]
    fn what_is_too_large_is_told() {
        let batch = Batch {
            values: vec![f32::MIN, f32::MAX],
            parameters: vec![1.0, 1.0],
            ..Batch::of(&[f32::MAX], &[0], &[2])
        };
        assert!(Gae::estimate(batch).expect_err("twice the most").contains("too large"));
    }

    proptest! {
        /// The sum over all later δ, written out.
        #[test]
        fn as_the_sum_of_later_surprises(
            tokens in prop::collection::vec((-2f32..2.0, -1f32..1.0), 1..12),
            reward in -5f32..5.0,
            gamma in 0f64..=1.0,
            lambda in 0f64..=1.0,
        ) {
            let (values, kl): (Vec<f32>, Vec<f32>) = tokens.into_iter().unzip();
            let (advantages, returns) = of(reward, &values, &kl, 0.5, [gamma, lambda]);
            let value = |t: usize| values.get(t).map_or(0.0, |&value| f64::from(value));
            let end = values.len() - 1;
            for t in 0..=end {
                let surprise = |k: usize| {
                    let reward = if k == end { f64::from(reward) } else { 0.0 };
                    reward - 0.5 * f64::from(kl[k]) + gamma * value(k + 1) - value(k)
                };
                let sum: f64 = (t..=end).map(|k| (gamma * lambda).powi((k - t) as i32) * surprise(k)).sum();
                prop_assert!((f64::from(advantages[t]) - sum).abs() < 1e-4);
                prop_assert!((f64::from(returns[t]) - sum - value(t)).abs() < 1e-4);
            }
        }

        /// With lambda 1 the critic only shifts: the return is the discounted sum of rewards.
        #[test]
        fn with_lambda_1_returns_do_not_depend_on_the_critic(
            values in prop::collection::vec(-2f32..2.0, 1..12),
            reward in -5f32..5.0,
            gamma in 0f64..=1.0,
        ) {
            let (_, returns) = of(reward, &values, &[], 0.0, [gamma, 1.0]);
            for (t, found) in returns.iter().enumerate() {
                let expected = f64::from(reward) * gamma.powi((values.len() - 1 - t) as i32);
                prop_assert!((f64::from(*found) - expected).abs() < 1e-4);
            }
        }
    }
}
