//! The clipped loss of PPO (Schulman et al. 2017, Proximal Policy Optimization, eq. 7), as an example of a loss: the host
//! has the same one, `algo.loss = "ppo"`.
//!
//! With the ratio ρ = π / π_sampled of a token and its advantage A, the loss is −min(ρA, clip(ρ, 0.8, 1.2)·A).

use molt_plugin::loss::{Batch, Loss, Losses};

/// The ratio is clipped at 1 minus this and 1 plus this.
const CLIP: f64 = 0.2;

/// A log-ratio is bounded before it is made a ratio, so that none is infinite.
const MAX_LOG_RATIO: f64 = 30.0;

pub struct PpoClip;

impl Loss for PpoClip {
    fn compute(batch: Batch) -> Result<Losses, String> {
        let ratios = batch.logprobs.iter().zip(&batch.sampled).map(|(&p, &q)| f64::from(p) - f64::from(q));
        let (losses, slopes) = ratios
            .zip(&batch.advantages)
            .map(|(log_ratio, &advantage)| token(log_ratio, f64::from(advantage)))
            .map(|(loss, slope)| (loss as f32, slope as f32))
            .unzip();
        Ok(Losses { losses, slopes })
    }
}

/// The loss of a token, and its derivative by the token's log-probability.
fn token(log_ratio: f64, advantage: f64) -> (f64, f64) {
    let ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let gain = ratio * advantage;
    let clipped = ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * advantage;
    if clipped < gain {
        (-clipped, 0.0)
    } else if log_ratio.abs() > MAX_LOG_RATIO {
        (-gain, 0.0)
    } else {
        // The derivative of ρ by log π is ρ.
        (-gain, -gain)
    }
}

molt_plugin::export_loss!(PpoClip);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_numbers() {
        // Made by running labs-molt 0.1.6; its gradients are of the mean over the six tokens.
        let found = PpoClip::compute(Batch {
            logprobs: vec![-1.0, -0.5, -2.0, -1.2, -0.3, -3.0],
            sampled: vec![-1.3, -0.5, -1.6, -1.0, -0.9, -2.5],
            old: vec![0.0; 6],
            advantages: vec![1.0, -1.0, 0.5, 0.25, -2.0, 1.0],
            segment_offsets: vec![0, 3, 6],
        });
        let Losses { losses, slopes } = found.expect("it cannot fail");
        let mean = losses.iter().sum::<f32>() / 6.0;
        assert!((mean - 0.382977).abs() < 1e-6, "{mean}");
        let want = [0.0, 0.166667, -0.055860, -0.034114, 0.607373, -0.101088];
        for (slope, want) in slopes.iter().zip(want) {
            assert!((slope / 6.0 - want).abs() < 1e-6, "{slopes:?}");
        }
    }

    #[test]
    fn a_far_ratio_stays_finite() {
        assert_eq!(token(1000.0, -1.0), (30_f64.exp(), 0.0));
        assert_eq!(token(1000.0, 1.0), (-1.2, 0.0));
    }

    proptest! {
        #[test]
        fn the_slope_is_that_of_the_loss(log_ratio in -2.0..2.0_f64, advantage in -3.0..3.0_f64) {
            let step = 1e-6;
            let edges = [(1.0 - CLIP).ln(), (1.0 + CLIP).ln()];
            prop_assume!(edges.iter().all(|edge: &f64| (log_ratio - edge).abs() > 2.0 * step));
            let by_difference = (token(log_ratio + step, advantage).0 - token(log_ratio - step, advantage).0) / (2.0 * step);
            prop_assert!((token(log_ratio, advantage).1 - by_difference).abs() < 1e-6);
        }
    }
}
