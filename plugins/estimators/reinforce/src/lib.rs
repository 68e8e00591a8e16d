//! REINFORCE++: the discounted return of each action token, with the KL penalty inside the reward.
//!
//! r_t = −kl_coef · kl_t, plus R at the last action token of the rollout; G_t = r_t + gamma · G_{t+1} over the
//! action tokens of the rollout, in order and across its segments, so what an environment says between two
//! turns neither earns nor discounts (as in `gae`), and a rollout is rewarded once. The advantage is G_t, whitened by the host over the whole batch
//! (Hu 2025, REINFORCE++, equations 4 and 6).

use group_credit::single;
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Parameter, Traits};

pub struct Reinforce;

impl Estimator for Reinforce {
    fn describe() -> Traits {
        let gamma = Parameter::float("gamma", 1.0, 0.0..=1.0, "discount per action token");
        Traits { uses_kl: true, whiten: true, parameters: vec![gamma], ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let [gamma] = batch.parameter_values()?;
        let mut returns = vec![0.0; batch.tokens()];
        for (tokens, &reward) in batch.tokens_by_rollout().iter().zip(&batch.rewards) {
            let mut ahead = f64::from(reward);
            for (place, &token) in tokens.iter().rev().enumerate() {
                let kl = batch.kl.get(token).map_or(0.0, |&kl| f64::from(kl));
                let discount = if place == 0 { 1.0 } else { gamma };
                ahead = discount * ahead - f64::from(batch.kl_coef) * kl;
                returns[token] = single(ahead)?;
            }
        }
        Ok(Estimates { advantages: Credit::PerToken(returns.clone()), returns: Credit::PerToken(returns) })
    }
}

molt_plugin::export_estimator!(Reinforce);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One segment per rollout, with the given KL at its action tokens.
    fn returns(gamma: f64, kl_coef: f32, rollouts: &[(f32, &[f32])]) -> Vec<f32> {
        let rewards: Vec<f32> = rollouts.iter().map(|(reward, _)| *reward).collect();
        let tokens: Vec<u32> = rollouts.iter().map(|(_, kl)| kl.len() as u32).collect();
        let kl = rollouts.iter().flat_map(|(_, kl)| kl.iter().copied()).collect();
        let batch = Batch::of(&rewards, &vec![0; rewards.len()], &tokens);
        estimate(Batch { kl, kl_coef, parameters: vec![gamma], ..batch })
    }

    fn estimate(batch: Batch) -> Vec<f32> {
        match Reinforce::estimate(batch).expect("finite").returns {
            Credit::PerToken(returns) => returns,
            Credit::PerRollout(_) => panic!("returns are per token"),
        }
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "found {found:?}, expected {expected:?}");
        }
    }

    // KL and rewards of the golden vectors made with Molt 0.1.6, on their action tokens. There the discount
    // also decays over masked positions; the second rollout has none between its tokens, so it agrees as is.
    const ROLLOUTS: [(f32, &[f32]); 2] = [(1.0, &[0.1, -0.2, 0.3]), (-0.5, &[0.4, 0.0, -0.1])];

    #[test]
    fn golden_returns_without_discount() {
        close(&returns(1.0, 0.1, &ROLLOUTS), &[0.98, 0.99, 0.97, -0.53, -0.49, -0.49]);
    }

    #[test]
    fn golden_returns_with_discount() {
        // First rollout by hand: 1 − .03 = .97; .02 + .9 · .97 = .893; −.01 + .9 · .893 = .7937.
        close(&returns(0.9, 0.1, &ROLLOUTS), &[0.7937, 0.893, 0.97, -0.4369, -0.441, -0.49]);
    }

    #[test]
    fn a_rollout_of_several_segments_is_rewarded_once_at_its_end() {
        // Segments of rollout 0: tokens 0, 1 and, after one of rollout 1, token 3. With gamma 1/2: 1, 1/2, 1/4.
        let batch = Batch {
            segment_rollouts: vec![0, 1, 0, 2],
            segment_offsets: vec![0, 2, 3, 4, 4],
            parameters: vec![0.5],
            ..Batch::of(&[1.0, -1.0, 7.0], &[0, 0, 0], &[2, 1, 1])
        };
        assert_eq!(estimate(batch), [0.25, 0.5, -1.0, 1.0]);
    }

    #[test]
    fn a_rollout_that_said_nothing_and_what_is_too_large() {
        // Molt 0.1.6 gives 2, 2 for the second rollout, and nothing for the first.
        close(&returns(1.0, 0.0, &[(3.0, &[]), (2.0, &[0.0, 0.0])]), &[2.0, 2.0]);
        let batch =
            Batch { kl: vec![-1e30], kl_coef: 1e30, parameters: vec![1.0], ..Batch::of(&[0.0], &[0], &[1]) };
        assert!(Reinforce::estimate(batch).expect_err("1e60").contains("too large"));
    }

    proptest! {
        #[test]
        fn as_the_sum_of_later_rewards(
            kl in prop::collection::vec(-1f32..1.0, 1..12),
            reward in -5f32..5.0,
            gamma in 0f64..=1.0,
        ) {
            let end = kl.len() - 1;
            for (t, found) in returns(gamma, 0.5, &[(reward, &kl)]).iter().enumerate() {
                let earned = |k: usize| -0.5 * f64::from(kl[k]) + if k == end { f64::from(reward) } else { 0.0 };
                let sum: f64 = (t..=end).map(|k| gamma.powi((k - t) as i32) * earned(k)).sum();
                prop_assert!((f64::from(*found) - sum).abs() < 1e-4, "{found} is not {sum}");
            }
        }

        #[test]
        fn each_rollout_stands_alone(
            rollouts in prop::collection::vec((-5f32..5.0, prop::collection::vec(-1f32..1.0, 0..6)), 1..6),
            turn in 0usize..6,
            gamma in 0f64..=1.0,
        ) {
            let turn = turn % rollouts.len();
            let view = |rollouts: &[(f32, Vec<f32>)]| -> Vec<f32> {
                let slices: Vec<(f32, &[f32])> = rollouts.iter().map(|(r, kl)| (*r, kl.as_slice())).collect();
                returns(gamma, 0.1, &slices)
            };
            let mut before = view(&rollouts);
            let moved: usize = rollouts[..turn].iter().map(|(_, kl)| kl.len()).sum();
            let mut rotated = rollouts;
            rotated.rotate_left(turn);
            before.rotate_left(moved);
            prop_assert_eq!(before, view(&rotated));
        }
    }
}
