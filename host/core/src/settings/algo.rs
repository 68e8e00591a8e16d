//! Advantages and the policy loss.

use super::{Kl, Parameters};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the policy's probability of a token is compared with in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Importance {
    /// The probability it was sampled with: corrects for older weights, within the clip range.
    #[default]
    Sampled,
    /// That under the weights with which training on its batch began: 1 in a batch's first optimiser step. What has
    /// changed between sampling and then is for `algo.correction`.
    Old,
}

/// A policy loss that the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeLoss {
    Ppo,
    Gspo,
    Cispo,
    Importance,
}

impl NativeLoss {
    pub const ALL: [Self; 4] = [Self::Ppo, Self::Gspo, Self::Cispo, Self::Importance];

    /// As `algo.loss` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ppo => "ppo",
            Self::Gspo => "gspo",
            Self::Cispo => "cispo",
            Self::Importance => "importance",
        }
    }

    /// By how much the ratio may be less than 1 where `algo.clip_low` is unset; none if nothing bounds it below.
    pub fn clip_low(self) -> Option<f64> {
        match self {
            Self::Ppo => Some(0.2),
            // Zheng et al. 2025, Group Sequence Policy Optimization, section 5.1.
            Self::Gspo => Some(3e-4),
            Self::Cispo | Self::Importance => None,
        }
    }

    /// By how much the ratio may be more than 1 where `algo.clip_high` is unset; none if nothing bounds it above.
    pub fn clip_high(self) -> Option<f64> {
        match self {
            Self::Ppo => Some(0.2),
            Self::Gspo => Some(4e-4),
            // Khatri et al. 2025, The Art of Scaling Reinforcement Learning Compute, took weights up to 5.
            Self::Cispo => Some(4.0),
            Self::Importance => None,
        }
    }
}

/// How the losses of tokens become the loss of an optimiser step. A sequence is one row that is trained; those without
/// action tokens do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// The mean over all action tokens.
    #[default]
    TokenMean,
    /// The mean over sequences of the mean over their tokens.
    SeqMeanTokenMean,
    /// The mean over sequences of the sum over their tokens.
    SeqMeanTokenSum,
    /// The mean over sequences of the sum over their tokens divided by `rollout.max_new_tokens`, whatever their length
    /// (Liu et al. 2025, Understanding R1-Zero-Like Training: Dr. GRPO).
    Constant,
}

/// How the divergence from another policy is estimated from a token that was sampled (Schulman 2020, Approximating KL
/// Divergence).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KlEstimator {
    /// The log-ratio.
    K1,
    /// Half its square.
    #[default]
    K2,
    /// The ratio of the other policy to this, less 1, less the log of it.
    K3,
}

/// What is compared with the band of a correction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CorrectionLevel {
    /// Nothing is corrected.
    #[default]
    Off,
    /// The ratio of each token.
    Token,
    /// The product of the ratios of a sequence.
    Seq,
    /// Their geometric mean.
    Geo,
}

/// What a correction makes of a ratio outside its band.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CorrectionMode {
    /// Its tokens have no weight.
    #[default]
    Mask,
    /// It counts as the end of the band.
    Clip,
    /// If it is above the band, it counts as its upper end.
    Trunc,
}

/// The weight of a token by how much its probability changed between sampling and the weights with which training on
/// its batch began.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Correction {
    /// What is compared with the band: off, token, seq (the product over a sequence) or geo (its geometric mean).
    pub level: CorrectionLevel,
    /// What becomes of a ratio outside the band: mask, clip or trunc. With seq and geo only mask.
    pub mode: CorrectionMode,
    /// Where the band begins. Unset: 0.5; with geo 0.99.
    pub low: Option<f64>,
    /// Where the band ends. Unset: 5; with geo 1.01.
    pub high: Option<f64>,
    /// The run stops when mask has left next to nothing of so many batches in a row. Unset: it warns, and goes on.
    pub max_masked_batches: Option<u64>,
}

impl Correction {
    /// The band, its ends included.
    pub fn band(&self) -> (f64, f64) {
        let (low, high) = match self.level {
            CorrectionLevel::Geo => (0.99, 1.01),
            _ => (0.5, 5.0),
        };
        (self.low.unwrap_or(low), self.high.unwrap_or(high))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Algo {
    /// The estimator plugin that turns rewards into advantages.
    pub estimator: String,
    /// Whiten the advantages over the batch, with an estimator that asks for it.
    pub whiten: bool,
    /// The policy loss: ppo, gspo (one ratio per sequence), cispo (the weight of a token is bounded, never its gradient
    /// cut), or importance (no bound); or a loss plugin: a name, name@version or a path to a .wasm file.
    pub loss: String,
    /// What a token's probability is compared with in the loss: sampled or old.
    pub importance: Importance,
    /// The probability ratio is clipped at 1 minus this. Unset: 0.2; with gspo 0.0003; cispo has no lower bound.
    pub clip_low: Option<f64>,
    /// The probability ratio is clipped at 1 plus this. Unset: 0.2; with gspo 0.0004; with cispo 4.
    pub clip_high: Option<f64>,
    /// With ppo, the loss of a token of negative advantage is at most so many times the advantage, however
    /// much more probable it has become. Unset: no bound.
    pub dual_clip: Option<f64>,
    /// How the losses of tokens become the loss of an optimiser step: token-mean, seq-mean-token-mean,
    /// seq-mean-token-sum, or constant (the sum over tokens divided by sequences times rollout.max_new_tokens).
    pub aggregation: Aggregation,
    /// Adds so many times the mean entropy of the next token's distribution to what is maximised.
    pub entropy_coef: f64,
    pub correction: Correction,
    pub kl: Kl,
    /// Parameters of the estimator, e.g. [algo.parameters] gamma = 0.99; `molt plugin inspect` shows which it has.
    pub parameters: Parameters,
}

impl Algo {
    /// The loss, if it is one of the host's.
    pub fn native_loss(&self) -> Option<NativeLoss> {
        NativeLoss::ALL.into_iter().find(|native| native.name() == self.loss)
    }

    /// By how much the ratio may be less than 1, and more, in one of the host's losses.
    pub fn clip(&self) -> (Option<f64>, Option<f64>) {
        let native = self.native_loss();
        let (low, high) = (native.and_then(NativeLoss::clip_low), native.and_then(NativeLoss::clip_high));
        (self.clip_low.or(low), self.clip_high.or(high))
    }
}

impl Default for Algo {
    fn default() -> Self {
        Self {
            estimator: "grpo".into(),
            whiten: true,
            loss: NativeLoss::Ppo.name().into(),
            importance: Importance::default(),
            clip_low: None,
            clip_high: None,
            dual_clip: None,
            aggregation: Aggregation::default(),
            entropy_coef: 0.0,
            correction: Correction::default(),
            kl: Kl::default(),
            parameters: Parameters::new(),
        }
    }
}
