//! The divergence `KL(π ‖ π_ref)` of the policy from a reference, estimated from tokens that the policy sampled, with
//! `d = log π − log π_ref` (Schulman 2020, Approximating KL Divergence): as a value, to report or to take off a reward,
//! and as a loss, to differentiate. The two are different questions.
//!
//! As values k1 and k3 are unbiased, k3 with less variance, and k2 is not. As losses it is otherwise, since
//! the gradient of an estimate is not an estimate of the gradient: tokens are drawn from π, and that
//! is not differentiated. By `E[∇log π] = 0`, that of k1 has mean 0: it does nothing but noise. That of k2 has mean
//! `E[d ∇log π]`, which is the gradient of the divergence. That of k3 has mean `E[(1 − e^−d) ∇log π]`, which is the
//! gradient of the divergence the other way around, `KL(π_ref ‖ π)`; the two agree to first order near the reference.
//! (Tang and Munos 2025, On a few pitfalls in KL divergence gradient estimation for RL; Liu et al. 2025, Rethinking
//! KL Regularization in RLHF.) In the reward, which weighs `∇log π`, it is k1 whose mean is that gradient, and
//! the others do not know a direction. All of it holds for tokens of the present policy, and for others as far as they are near.

use molt_core::settings::KlEstimator;
use serde::{Deserialize, Serialize};

/// The weight of the divergence from the reference in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlLoss {
    /// K2 or k3; with k1 nothing pulls to the reference.
    pub estimator: KlEstimator,
    pub coef: f64,
}

/// What the divergence is reported as, and held against `algo.kl.target`, whatever is differentiated or taken off a reward.
pub const MEASURE: KlEstimator = KlEstimator::K3;

/// An infinite log-ratio counts as this.
const INFINITE: f64 = 30.0;

/// The estimates k2 and k3 of one token are at most this.
const MOST: f64 = 10.0;

/// The log-ratios at which k2 reaches [`MOST`]: `d²/2 = 10`.
const ENDS_K2: f64 = 4.472_135_954_999_58;

/// Those at which k3 does: `e^−d − 1 + d = 10`.
const ENDS_K3: (f64, f64) = (-2.610_868_638_149_876, 10.999_983_298_020_256);

/// `log π − log π_ref` of a token; what is infinite is ±30, and what is no number stays none.
pub fn log_ratio(logprob: f64, reference: f64) -> f64 {
    match logprob - reference {
        d if d.is_infinite() => INFINITE.copysign(d),
        d => d,
    }
}

/// The estimate of a token with the log-ratio `d`: `d`, `d²/2`, or `e^−d − 1 + d`; the last two at most 10.
pub fn value(estimator: KlEstimator, d: f64) -> f64 {
    match estimator {
        KlEstimator::K1 => d,
        KlEstimator::K2 => bounded(d * d / 2.0),
        KlEstimator::K3 => bounded((-d).exp() - 1.0 + d),
    }
}

/// The derivative of the estimate by `log π`. Beyond the bound of the value it stays what it is there: a token that is
/// farther away is drawn back no less, though one token has no more than so much of the gradient.
pub fn slope(estimator: KlEstimator, d: f64) -> f64 {
    match estimator {
        KlEstimator::K1 => 1.0,
        KlEstimator::K2 => d.clamp(-ENDS_K2, ENDS_K2),
        KlEstimator::K3 => 1.0 - (-d.clamp(ENDS_K3.0, ENDS_K3.1)).exp(),
    }
}

/// Unlike `f64::min`, not a number stays one.
fn bounded(value: f64) -> f64 {
    if value > MOST { MOST } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }

    #[test]
    fn golden_values() {
        // Made by running labs-molt 0.1.6, but for what is no number, which it makes 0.
        let ratios = [-1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 20.0, -20.0, f64::INFINITY, f64::NEG_INFINITY];
        let k1 = [-1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 20.0, -20.0, 30.0, -30.0];
        let k2 = [0.5, 0.005, 0.0, 0.005, 0.5, 10.0, 10.0, 10.0, 10.0, 10.0];
        let k3 = [0.718282, 0.005171, 0.0, 0.004837, 0.367879, 4.006738, 10.0, 10.0, 10.0, 10.0];
        for (estimator, want) in [(KlEstimator::K1, k1), (KlEstimator::K2, k2), (KlEstimator::K3, k3)] {
            for (d, want) in ratios.into_iter().zip(want) {
                close(value(estimator, log_ratio(d, 0.0)), want);
            }
            let nan = log_ratio(f64::NAN, 0.0);
            assert!(value(estimator, nan).is_nan(), "never a divergence of 0");
        }
    }

    /// A policy `softmax(θ)` of three tokens, whose expectations are sums over them.
    #[test]
    fn the_gradients_of_the_losses_are_those_of_two_divergences() {
        let theta = [0.3_f64, -0.2, 0.5];
        let reference = [0.2_f64, 0.5, 0.3];
        let total: f64 = theta.iter().map(|t| t.exp()).sum();
        let policy = theta.map(|t| t.exp() / total);
        // ∂ log π(a) / ∂ θ_i = [a = i] − π(i)
        let gradient = |estimator| {
            let mut sum = [0.0; 3];
            for (a, (p, q)) in policy.iter().zip(&reference).enumerate() {
                let slope = slope(estimator, log_ratio(p.ln(), q.ln()));
                for (i, sum) in sum.iter_mut().enumerate() {
                    *sum += p * slope * (f64::from(u8::from(a == i)) - policy[i]);
                }
            }
            sum
        };
        let in_reward = |estimator| {
            let mut sum = [0.0; 3];
            for (a, (p, q)) in policy.iter().zip(&reference).enumerate() {
                let penalty = value(estimator, log_ratio(p.ln(), q.ln()));
                for (i, sum) in sum.iter_mut().enumerate() {
                    *sum += p * penalty * (f64::from(u8::from(a == i)) - policy[i]);
                }
            }
            sum
        };
        let close = |got: [f64; 3], want: [f64; 3]| {
            for (got, want) in got.into_iter().zip(want) {
                assert!((got - want).abs() < 1e-5, "{got} is not {want}");
            }
        };
        // The true gradient of KL(π ‖ π_ref), and π − π_ref, that of KL(π_ref ‖ π).
        close(gradient(KlEstimator::K1), [0.0; 3]);
        close(gradient(KlEstimator::K2), [0.13880, -0.21958, 0.08078]);
        close(gradient(KlEstimator::K3), [0.15362, -0.28552, 0.13191]);
        close(gradient(KlEstimator::K3), std::array::from_fn(|i| policy[i] - reference[i]));
        close(in_reward(KlEstimator::K1), [0.13880, -0.21958, 0.08078]);
        for estimator in [KlEstimator::K2, KlEstimator::K3] {
            assert!(in_reward(estimator)[1] > -0.1, "{estimator:?} has another");
        }
    }

    #[test]
    fn slopes_are_those_of_the_values_and_stay_where_they_are_bounded() {
        for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
            for d in [-2.6, -2.0, -0.3, 0.0, 0.4, 3.0, 4.4] {
                let step = 1e-6;
                let by_difference = (value(estimator, d + step) - value(estimator, d - step)) / (2.0 * step);
                assert!((slope(estimator, d) - by_difference).abs() < 1e-6, "{estimator:?} at {d}");
            }
            assert!(slope(estimator, f64::NAN).is_nan() || estimator == KlEstimator::K1);
        }
        for (estimator, [low, high]) in
            [(KlEstimator::K2, [-ENDS_K2, ENDS_K2]), (KlEstimator::K3, [ENDS_K3.0, ENDS_K3.1])]
        {
            for (end, beyond) in [(low, [-5.0, -25.0, -INFINITE]), (high, [11.5, 25.0, INFINITE])] {
                close(value(estimator, end), MOST);
                assert!(value(estimator, end * (1.0 - 1e-6)) < MOST);
                for d in beyond {
                    close(value(estimator, d), MOST);
                    assert_eq!(slope(estimator, d), slope(estimator, end), "{estimator:?} at {d}");
                }
            }
        }
        // To less of what the policy likes too much, to more of what it likes too little.
        assert!(slope(KlEstimator::K2, 30.0) > 4.4 && slope(KlEstimator::K2, -30.0) < -4.4);
        assert!(slope(KlEstimator::K3, 30.0) > 0.99 && slope(KlEstimator::K3, -30.0) < -12.6);
    }
}
