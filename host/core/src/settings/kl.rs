//! Divergence from a reference model.

use super::KlEstimator;
use super::validate::{Found, number, say};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the divergence from the reference model counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KlIn {
    /// Added to the loss of every action token.
    #[default]
    Loss,
    /// Taken off the reward of every action token, by estimators that use it.
    Reward,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Kl {
    /// Weight of the divergence of the policy from the reference model. 0: none, and no reference model is read. With
    /// teacher.model it is 1 unless another is given.
    pub coef: f64,
    /// Where it counts: loss, or reward, which the estimator must use. With teacher.model it is reward.
    pub r#in: KlIn,
    /// What it is computed as: k1 in the reward, k2 or k3 in the loss, since the expected gradient of the others is not that
    /// of the divergence. Unset: k1 in the reward, k2 in the loss.
    pub estimator: Option<KlEstimator>,
    /// Move the weight after every batch so that the divergence per token, train/kl_reference, goes to this. Unset: the weight stays.
    pub target: Option<f64>,
    /// In about so many rollouts the weight is moved by the share that the divergence is off, at most 0.2 of it. Unset: 10000.
    pub horizon: Option<f64>,
}

impl Kl {
    /// The estimator of the divergence that is used.
    pub fn estimator(&self) -> KlEstimator {
        self.estimator.unwrap_or(match self.r#in {
            KlIn::Reward => KlEstimator::K1,
            KlIn::Loss => KlEstimator::K2,
        })
    }

    /// Whether it is taken off the reward.
    pub fn in_reward(&self) -> bool {
        self.coef > 0.0 && self.r#in == KlIn::Reward
    }

    pub(super) fn check(&self, found: &mut Found) {
        number(found, "algo.kl.coef", self.coef, |c| c >= 0.0, "at least 0");
        for (key, value) in [("algo.kl.target", self.target), ("algo.kl.horizon", self.horizon)] {
            if let Some(value) = value {
                number(found, key, value, |x| x > 0.0, "above 0");
            }
        }
        let set = [
            ("algo.kl.in", self.r#in != KlIn::default()),
            ("algo.kl.estimator", self.estimator.is_some()),
            ("algo.kl.target", self.target.is_some()),
            ("algo.kl.horizon", self.horizon.is_some()),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set && self.coef == 0.0) {
            say(found, key, "is set, and does nothing while algo.kl.coef is 0: give a weight, such as 0.01");
        }
        let wrong = match (self.r#in, self.estimator()) {
            _ if self.coef == 0.0 => None,
            (KlIn::Loss, KlEstimator::K1) => Some(
                "is k1, whose gradient is not that of the divergence: it is 0 in the mean, so in the loss it is noise. \
                      Use k2 or k3, or algo.kl.in reward",
            ),
            (KlIn::Reward, KlEstimator::K2 | KlEstimator::K3) => Some(
                "must be k1 with algo.kl.in reward: k2 and k3 do not say whether a token is too likely or not likely \
                      enough, so what is learnt from them is not the divergence",
            ),
            _ => None,
        };
        if let Some(sentence) = wrong {
            say(found, "algo.kl.estimator", sentence);
        }
        if self.horizon.is_some() && self.target.is_none() {
            say(found, "algo.kl.horizon", "is set, and does nothing without algo.kl.target");
        }
    }
}
