//! How the weights are moved.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a gradient moves the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimKind {
    #[default]
    Adamw,
    Muon,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Optim {
    /// adamw, or muon: that for the matrices of the layers, and adamw for all else.
    pub kind: OptimKind,
    /// Peak learning rate. Updates of muon are scaled to the size of those of adamw.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, on matrices only.
    pub weight_decay: f64,
    /// The gradient is scaled down to this L2 norm; 0 leaves it as it is.
    pub max_grad_norm: f64,
    /// The learning rate after the warm-up: constant, linear or cosine. It counts steps; one whose gradient is 0 throughout is
    /// none.
    pub schedule: Schedule,
    /// Steps over which the learning rate rises linearly from lr / warmup_steps.
    pub warmup_steps: u64,
    /// Where linear and cosine end, as a share of the peak.
    pub min_lr_ratio: f64,
    /// Parameters that are not trained: those with one of these in their name, such as embed_tokens or layers.0.
    pub freeze: Vec<String>,
}

impl Default for Optim {
    fn default() -> Self {
        Self {
            kind: OptimKind::default(),
            lr: 1e-6,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            schedule: Schedule::default(),
            warmup_steps: 0,
            min_lr_ratio: 0.1,
            freeze: Vec::new(),
        }
    }
}

/// How the learning rate moves after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    #[default]
    Constant,
    Linear,
    Cosine,
}
