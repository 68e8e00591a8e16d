//! Advantages and the policy loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the policy's probability of a token is compared with in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Importance {
    /// The probability it was sampled with: corrects for older weights, within the clip range.
    #[default]
    Sampled,
    /// Nothing: the plain policy gradient. Only where every token was sampled by the weights being trained.
    None,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Algo {
    /// The estimator plugin that turns rewards into advantages.
    pub estimator: String,
    /// Discount per action token, for estimators that discount.
    pub gamma: f32,
    /// Trace decay of GAE, for estimators that use it.
    pub lambda: f32,
    /// What a token's probability is compared with in the loss: sampled or none.
    pub importance: Importance,
    /// The probability ratio is clipped at 1 minus this.
    pub clip_low: f64,
    /// The probability ratio is clipped at 1 plus this.
    pub clip_high: f64,
}

impl Default for Algo {
    fn default() -> Self {
        Self {
            estimator: "grpo".into(),
            gamma: 1.0,
            lambda: 1.0,
            importance: Importance::default(),
            clip_low: 0.2,
            clip_high: 0.2,
        }
    }
}
