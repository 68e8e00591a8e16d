//! The policy losses by name. Each gives the loss of one action token and its derivative by the token's
//! log-probability; in the comments, sg is what is taken as a constant.

use serde::{Deserialize, Serialize};

/// What an action token's log-probability `log π` is to make of its advantage `A`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Surrogate {
    /// `−min(ρA, clip(ρ, 1−low, 1+high)·A)`: Schulman et al. 2017, Proximal Policy Optimization, eq. 7, with bounds of
    /// their own on either side as in DAPO (Yu et al. 2025, eq. 8). With `dual`, where `A < 0`, at most `−dual·A`: Ye et
    /// al. 2020, Mastering Complex Control in MOBA Games, eq. 6.
    Ppo { low: f64, high: f64, dual: Option<f64> },
    /// As PPO with `ρ = sg[s] · π / sg[π]`, where s is the ratio of the token's sequence, the geometric mean of
    /// those of its tokens: Zheng et al. 2025, Group Sequence Policy Optimization, eq. 14.
    Gspo { low: f64, high: f64 },
    /// `−sg[min(ρ, 1+high)]·A·log π`: MiniMax 2025, MiniMax-M1, eq. 4 and 5, without a lower bound, as there.
    Cispo { high: f64 },
    /// `−ρA`.
    Importance,
}

/// A loss, and how it changes with `log π`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Value {
    pub loss: f64,
    pub slope: f64,
    pub ratio: f64,
    /// The bound on the ratio is what counts: PPO and GSPO have no gradient, CISPO a bounded one.
    pub is_clipped: bool,
    /// The bound of the dual clip is what counts, and there is no gradient.
    pub is_dual_clipped: bool,
}

impl Surrogate {
    /// The loss of a token with `logprob`, compared with `against`, in a sequence whose log-ratio is `of_sequence`.
    pub fn value(self, logprob: f64, against: f64, of_sequence: f64, advantage: f64) -> Value {
        match self {
            Self::Ppo { low, high, dual } => clipped(logprob - against, advantage, (low, high), dual),
            Self::Gspo { low, high } => clipped(of_sequence, advantage, (low, high), None),
            Self::Cispo { high } => {
                let (ratio, _) = exp(logprob - against);
                let is_clipped = ratio > 1.0 + high;
                let weight = if is_clipped { 1.0 + high } else { ratio } * advantage;
                Value { loss: -weight * logprob, slope: -weight, ratio, is_clipped, is_dual_clipped: false }
            }
            Self::Importance => {
                let (ratio, slope) = exp(logprob - against);
                Value { loss: -ratio * advantage, slope: -slope * advantage, ratio, ..Value::default() }
            }
        }
    }

    /// Whether tokens can be clipped.
    pub fn has_bounds(self) -> bool {
        self != Self::Importance
    }

    /// Whether tokens of negative advantage can be clipped too.
    pub fn has_dual_bound(self) -> bool {
        matches!(self, Self::Ppo { dual: Some(_), .. })
    }

    /// Whether a token's loss depends on all of its sequence.
    pub fn is_of_sequences(self) -> bool {
        matches!(self, Self::Gspo { .. })
    }
}

fn clipped(log_ratio: f64, advantage: f64, (low, high): (f64, f64), dual: Option<f64>) -> Value {
    let (ratio, slope) = exp(log_ratio);
    let raw = ratio * advantage;
    let bounded = ratio.clamp(1.0 - low, 1.0 + high) * advantage;
    let is_clipped = bounded < raw;
    let gain = if is_clipped { bounded } else { raw };
    match dual.map(|dual| dual * advantage) {
        Some(least) if advantage < 0.0 && gain < least => {
            Value { loss: -least, slope: 0.0, ratio, is_clipped, is_dual_clipped: true }
        }
        _ => {
            let slope = if is_clipped { 0.0 } else { -slope * advantage };
            Value { loss: -gain, slope, ratio, is_clipped, is_dual_clipped: false }
        }
    }
}

/// A log-ratio is bounded before it is made a ratio, so that none is infinite.
const MAX_LOG_RATIO: f64 = 30.0;

/// The ratio and its derivative by its logarithm, which is 0 where it is bounded.
pub(super) fn exp(log_ratio: f64) -> (f64, f64) {
    let ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    // Not a number stays one, here and in the slope: such a step must fail.
    let slope = if log_ratio.abs() > MAX_LOG_RATIO { 0.0 } else { ratio };
    (ratio, slope)
}
