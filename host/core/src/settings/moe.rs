//! Mixtures of experts.

use super::validate::{Found, number};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Moe {
    /// Weight of the load-balancing loss, which draws tokens to all experts of a layer alike; it costs one more
    /// forward pass. Only for models with experts. 0: none.
    pub router_aux_coef: f64,
}

impl Moe {
    pub(super) fn check(&self, found: &mut Found) {
        number(found, "moe.router_aux_coef", self.router_aux_coef, |c| c >= 0.0, "at least 0");
    }
}
