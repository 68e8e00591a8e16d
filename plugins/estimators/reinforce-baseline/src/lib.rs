//! REINFORCE++-baseline: a rollout against the mean of its prompt's rollouts, then every token against the batch.
//!
//! A = R − mean over the rollouts of one group, whitened by the host over all action tokens of the batch (Hu et al. 2025,
//! REINFORCE++, the variant with a baseline). The division is by the spread of the whole batch, which no single group
//! distorts. A group of one has nothing to compare with: 0 before whitening. The returns are R − mean.

use group_credit::{centred, estimates};
use molt_plugin::estimator::{Batch, Estimates, Estimator, Traits};

pub struct ReinforceBaseline;

impl Estimator for ReinforceBaseline {
    fn describe() -> Traits {
        Traits { needs_group: true, whiten: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        estimates(&batch, centred)
    }
}

molt_plugin::export_estimator!(ReinforceBaseline);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::estimator::Credit;
    use proptest::prelude::*;

    fn of(batch: Batch) -> Vec<f32> {
        match ReinforceBaseline::estimate(batch).expect("finite").advantages {
            Credit::PerRollout(advantages) => advantages,
            Credit::PerToken(_) => panic!("one number per rollout"),
        }
    }

    /// What the host makes of it: one number per token, less the mean, over the population's deviation.
    fn whitened(advantages: &[f32], tokens: &[usize]) -> Vec<f64> {
        let all = advantages.iter().zip(tokens).flat_map(|(&a, &n)| vec![f64::from(a); n]);
        let all: Vec<f64> = all.collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|a| (a - mean) * (a - mean)).sum::<f64>() / all.len() as f64;
        all.iter().map(|a| (a - mean) / variance.max(1e-8).sqrt()).collect()
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn golden_segments() {
        // Made by running Molt 0.1.6: two rollouts, of two segments and of one, and one of two that is alone.
        let batch = Batch {
            segment_rollouts: vec![0, 0, 1, 2, 2],
            segment_offsets: vec![0, 1, 2, 3, 4, 5],
            turns: vec![0; 5],
            ..Batch::of(&[1.0, 0.0, 0.5], &[0, 0, 1], &[])
        };
        let advantages = of(batch);
        assert_eq!(advantages, [0.5, -0.5, 0.0]);
        close(
            &whitened(&advantages, &[2, 1, 2]),
            &[1.069_045, 1.069_045, -1.603_567, -0.267_261, -0.267_261],
        );
    }

    #[test]
    fn golden_long_and_short() {
        // Molt 0.1.6: four tokens of reward 1 and one of 0 give .5 each and −2.
        let advantages = of(Batch::of(&[1.0, 0.0], &[0, 0], &[4, 1]));
        close(&whitened(&advantages, &[4, 1]), &[0.5, 0.5, 0.5, 0.5, -2.0]);
    }

    #[test]
    fn nothing_to_compare_with() {
        assert_eq!(of(Batch::of(&[0.1; 7], &[0; 7], &[1; 7])), [0.0; 7]);
        assert_eq!(of(Batch::of(&[2.0], &[0], &[1])), [0.0]);
        assert_eq!(of(Batch::of(&[100.0, 1.0], &[0, 0], &[0, 2])), [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn as_the_mean_difference_to_all_whatever_the_shift(
            rewards in prop::collection::vec(-8i8..8, 1..20),
            shift in -8i8..8,
        ) {
            let rewards: Vec<f32> = rewards.into_iter().map(f32::from).collect();
            let shifted: Vec<f32> = rewards.iter().map(|reward| reward + f32::from(shift)).collect();
            let advantages = of(Batch::of(&shifted, &vec![0; rewards.len()], &vec![1; rewards.len()]));
            for (found, own) in advantages.iter().zip(&rewards) {
                let all: f32 = rewards.iter().map(|other| own - other).sum();
                prop_assert!((found - all / rewards.len() as f32).abs() < 1e-5);
            }
        }
    }
}
