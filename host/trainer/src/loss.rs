//! The policy loss: a pure function of log-probabilities and advantages.
//!
//! All tensors hold one number per action token, shape `[n]`. Context has no place in them: it was never selected, so
//! nothing that stands there can reach the loss.

use molt_core::settings::{Algo, Importance};
use tch::{Kind, Tensor};

/// Log-ratios are clamped to this, so that no ratio overflows.
const MAX_LOG_RATIO: f64 = 30.0;

/// The clipped policy gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyLoss {
    /// What the policy's probability of a token is compared with.
    pub importance: Importance,
    /// The ratio is clipped at 1 minus this.
    pub clip_low: f64,
    /// The ratio is clipped at 1 plus this.
    pub clip_high: f64,
}

/// A loss to differentiate, and sums over its action tokens to report.
#[derive(Debug)]
pub struct LossOutput {
    /// Scalar with gradient: the sum of the token losses, divided by the denominator.
    pub loss: Tensor,
    /// Tokens whose clipped product is the smaller one, so that they have no gradient.
    pub clipped: f64,
    /// Sum of the ratios.
    pub ratio: f64,
    /// Sum of `log π_sampled − log π`, the estimate k1 of the divergence from the sampling policy
    /// (Schulman 2020, Approximating KL Divergence).
    pub kl: f64,
}

impl From<&Algo> for PolicyLoss {
    fn from(algo: &Algo) -> Self {
        Self { importance: algo.importance, clip_low: algo.clip_low, clip_high: algo.clip_high }
    }
}

impl PolicyLoss {
    /// `Σ −min(ρA, clip(ρ, 1−low, 1+high)·A) / denominator` (PPO, Schulman et al. 2017, eq. 7, with bounds of
    /// their own on either side as in DAPO, Yu et al. 2025).
    ///
    /// `ρ = π / π_sampled`, or, without importance, `ρ = π / stop_gradient(π)`: 1 with the gradient of `log π`.
    /// `logprobs` carries the gradient; `denominator` is the number of action tokens of the whole optimiser
    /// step, so the sum over micro-batches does not depend on how the step was split.
    pub fn compute(
        &self,
        logprobs: &Tensor,
        sampled: &Tensor,
        advantages: &Tensor,
        denominator: f64,
    ) -> LossOutput {
        let detached = logprobs.detach();
        let reference = match self.importance {
            Importance::Sampled => sampled,
            Importance::None => &detached,
        };
        let ratio = (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
        let raw = &ratio * advantages;
        let clipped = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * advantages;
        let loss = -raw.minimum(&clipped).sum(logprobs.kind()) / denominator;
        LossOutput {
            loss,
            clipped: sum(&clipped.lt_tensor(&raw)),
            ratio: sum(&ratio),
            kl: sum(&(sampled - &detached)),
        }
    }
}

/// Sum of all elements, accumulated in float64.
fn sum(values: &Tensor) -> f64 {
    values.sum(Kind::Double).double_value(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGPROBS: [f32; 8] = [-1.0, -0.5, -2.0, -0.1, -0.7, -1.2, -0.3, -3.0];
    const SAMPLED: [f32; 8] = [-1.3, -0.5, -1.6, -0.1, -0.7, -1.0, -0.9, -2.5];
    const ADVANTAGES: [f32; 8] = [1.0, -1.0, 0.5, 2.0, -0.5, 0.25, -2.0, 1.0];
    const ACTIONS: [i64; 6] = [0, 1, 2, 5, 6, 7];

    fn ppo(clip_low: f64, clip_high: f64) -> PolicyLoss {
        PolicyLoss { importance: Importance::Sampled, clip_low, clip_high }
    }

    /// Loss and gradient with respect to all positions, the action tokens selected.
    fn run(
        loss: PolicyLoss,
        values: [[f32; 8]; 3],
        actions: &[i64],
        denominator: f64,
    ) -> (LossOutput, Vec<f32>) {
        let [logprobs, sampled, advantages] = values.map(|v| Tensor::from_slice(&v));
        let logprobs = logprobs.set_requires_grad(true);
        let select = |t: &Tensor| t.index_select(0, &Tensor::from_slice(actions));
        let output = loss.compute(&select(&logprobs), &select(&sampled), &select(&advantages), denominator);
        output.loss.backward();
        let gradient = Vec::<f32>::try_from(logprobs.grad()).expect("a vector");
        (output, gradient)
    }

    fn close(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-6, "got {got:?}, want {want:?}");
        }
    }

    // Golden numbers made by running labs-molt 0.1.6.
    const GRADIENT: [f32; 8] = [0.0, 0.166667, -0.055860, 0.0, 0.0, -0.034114, 0.607373, -0.101088];

    #[test]
    fn golden_numbers() {
        for (high, want) in [(0.2, 0.382977), (0.28, 0.369644)] {
            let (output, gradient) = run(ppo(0.2, high), [LOGPROBS, SAMPLED, ADVANTAGES], &ACTIONS, 6.0);
            assert!((output.loss.double_value(&[]) - want).abs() < 1e-6);
            assert!((output.clipped / 6.0 - 0.166667).abs() < 1e-6);
            assert!((output.kl / 6.0 - 0.033333).abs() < 1e-6);
            close(&gradient, &GRADIENT);
        }
        // The denominator is the caller's: 50 tokens in the step, of which 6 are here.
        let (output, gradient) = run(ppo(0.2, 0.2), [LOGPROBS, SAMPLED, ADVANTAGES], &ACTIONS, 50.0);
        assert!((output.loss.double_value(&[]) - 0.382977 * 6.0 / 50.0).abs() < 1e-6);
        close(&gradient, &GRADIENT.map(|g| g * 6.0 / 50.0));
    }

    #[test]
    fn on_policy_it_is_reinforce() {
        // Ratio 1, nothing clipped, gradient −A/N: also what no importance means, whatever was sampled.
        let want: Vec<f32> =
            (0..8).map(|i| if ACTIONS.contains(&(i as i64)) { -ADVANTAGES[i] / 6.0 } else { 0.0 }).collect();
        for (loss, sampled) in [
            (ppo(0.2, 0.2), LOGPROBS),
            (PolicyLoss { importance: Importance::None, ..ppo(0.2, 0.2) }, SAMPLED),
        ] {
            let (output, gradient) = run(loss, [LOGPROBS, sampled, ADVANTAGES], &ACTIONS, 6.0);
            assert_eq!((output.ratio, output.clipped), (6.0, 0.0));
            close(&gradient, &want);
        }
    }

    #[test]
    fn short_and_long_rows_weigh_by_their_tokens() {
        // Rows of 2 and 6 tokens with losses 1 and 3 per token: 2.5, where a mean of means gives 2.
        let advantages = [-1.0, -1.0, -3.0, -3.0, -3.0, -3.0, -3.0, -3.0];
        let total = |split: &[&[i64]]| -> f64 {
            split
                .iter()
                .map(|actions| run(ppo(0.2, 0.2), [LOGPROBS, LOGPROBS, advantages], actions, 8.0))
                .map(|(output, _)| output.loss.double_value(&[]))
                .sum()
        };
        for split in [
            &[&[0, 1, 2, 3, 4, 5, 6, 7][..]][..],
            &[&[0, 1], &[2, 3, 4, 5, 6, 7]],
            &[&[7, 1, 3], &[0, 2, 4, 5, 6]],
        ] {
            assert!((total(split) - 2.5).abs() < 1e-6);
        }
    }

    #[test]
    fn nothing_to_train_is_zero() {
        let (output, gradient) = run(ppo(0.2, 0.2), [LOGPROBS, SAMPLED, ADVANTAGES], &[], 6.0);
        assert_eq!((output.loss.double_value(&[]), output.clipped), (0.0, 0.0));
        assert_eq!(gradient, [0.0; 8]);
    }

    #[test]
    fn a_far_ratio_stays_finite() {
        let mut values = [LOGPROBS, SAMPLED, [-1.0; 8]];
        values[0] = [1000.0; 8];
        let (output, gradient) = run(ppo(0.2, 0.2), values, &[0], 1.0);
        // exp(30) = 1.0686e13, as labs-molt 0.1.6 gives.
        assert!((output.loss.double_value(&[]) / 1.068_647e13 - 1.0).abs() < 1e-5);
        assert_eq!(gradient, [0.0; 8]);
    }
}
