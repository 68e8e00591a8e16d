//! Low-rank adapters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Lora {
    /// Train an adapter of this rank in place of the weights: W + alpha / rank * B A. Unset: train the weights.
    pub rank: Option<usize>,
    /// Scales the adapter. Unset: twice the rank.
    pub alpha: Option<f64>,
    /// The projections that have one, such as q_proj. Unset: all of the layers.
    pub targets: Vec<String>,
}

impl Lora {
    /// Rank and alpha, if an adapter is trained.
    pub fn size(&self) -> Option<(usize, f64)> {
        self.rank.map(|rank| (rank, self.alpha.unwrap_or(2.0 * rank as f64)))
    }
}
