//! Models beside the policy: a reference, a teacher, a critic.

use super::validate::{Found, count, is_empty, number, say};
use super::{Agent, KlIn, Optim, TrainSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The estimator of a run that learns from a teacher.
const DISTILL: &str = "on-policy-distill";

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Reference {
    /// The model that algo.kl.coef keeps the policy near, of any size but with the same tokenizer. Unset: what the
    /// training starts from, without its adapter.
    pub model: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Teacher {
    /// Learn from this model, of any size but with the same tokenizer: the policy's own rollouts become as likely as the
    /// teacher finds them, and no reward is needed. Takes algo.estimator on-policy-distill unless another is given.
    pub model: Option<PathBuf>,
}

/// The critic, which an estimator that needs values has trained beside the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Critic {
    /// The model that the critic starts from, with a new head, of any size but with the same tokenizer. Unset: what the
    /// policy starts from, without its adapter.
    pub model: Option<PathBuf>,
    /// A value that has moved by more than this from what it was before the update is clipped. 0: none is.
    pub clip: f64,
    /// Passes of the critic over each batch.
    pub passes: usize,
    /// Optimiser steps of the critic in each pass.
    pub steps_per_batch: usize,
    /// The first so many batches train the critic only.
    pub warmup_steps: u64,
    pub optim: Optim,
}

impl Default for Critic {
    fn default() -> Self {
        let optim = Optim { lr: 1e-5, ..Optim::default() };
        Self { model: None, clip: 0.2, passes: 1, steps_per_batch: 1, warmup_steps: 0, optim }
    }
}

impl Agent {
    /// Whether its rollouts may have a reward: one of these plugins gives one, or it may itself. `single-turn`, of whatever
    /// version or place, does not.
    pub(super) fn is_scored(&self, rewards: &[String]) -> bool {
        !rewards.is_empty() || names(&self.name) != Self::default().name
    }
}

/// The plugin that a setting names, of whatever version or place.
fn names(plugin: &str) -> &str {
    let name = Path::new(plugin).file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.split('@').next()).unwrap_or_default();
    name.strip_suffix(".wasm").unwrap_or(name)
}

impl TrainSettings {
    /// The model directory of the reference, if there is one.
    pub fn reference(&self) -> Option<&Path> {
        let other = self.teacher.model.as_ref().or(self.reference.model.as_ref());
        (self.algo.kl.coef > 0.0).then(|| other.unwrap_or(&self.model.path).as_path())
    }

    /// What a teacher implies of what was not given.
    pub(super) fn with_teacher(mut self, is_given: impl Fn(&str) -> bool) -> Self {
        if self.teacher.model.is_some() {
            if !is_given("algo.estimator") {
                self.algo.estimator = DISTILL.to_owned();
            }
            if !is_given("algo.kl.coef") {
                self.algo.kl.coef = 1.0;
            }
            if !is_given("algo.kl.in") && self.algo.kl.coef != 0.0 {
                self.algo.kl.r#in = KlIn::Reward;
            }
        }
        self
    }

    /// Whether rollouts may have a reward: a plugin gives one, or the agent may.
    pub fn is_scored(&self) -> bool {
        self.agent.is_scored(&self.reward.name)
    }

    /// Whether the estimator is the one that learns from a teacher alone, of whatever version or place.
    fn distills(&self) -> bool {
        names(&self.algo.estimator) == DISTILL
    }

    pub(super) fn check_models(&self, found: &mut Found) {
        let paths = [
            ("reference.model", &self.reference.model),
            ("teacher.model", &self.teacher.model),
            ("critic.model", &self.critic.model),
        ];
        for (key, _) in paths.into_iter().filter(|(_, path)| path.as_deref().is_some_and(is_empty)) {
            say(found, key, "is empty: name a Hugging Face model directory, or leave it out");
        }
        if self.reference.model.is_some() && self.teacher.model.is_some() {
            say(
                found,
                "reference.model",
                "cannot go with teacher.model, which is the reference then: leave one out",
            );
        } else if self.reference.model.is_some() && self.algo.kl.coef == 0.0 {
            say(
                found,
                "reference.model",
                "is set, and does nothing while algo.kl.coef is 0: give a weight, such as 0.01",
            );
        }
        if self.teacher.model.is_some() {
            if self.algo.kl.coef == 0.0 {
                say(
                    found,
                    "algo.kl.coef",
                    "is 0, and with it nothing is learnt from teacher.model: leave one of them out",
                );
            } else if self.algo.kl.r#in == KlIn::Loss {
                say(
                    found,
                    "algo.kl.in",
                    "is loss, and teacher.model teaches by the reward: leave it out, or name the model with \
                     reference.model",
                );
            }
            let reward = &self.reward;
            let usual = super::Reward::default();
            let of_scores = [
                ("rollout.filter.by", self.rollout.filter.is_on()),
                ("data.curriculum", self.data.curriculum.is_on()),
                ("reward.lowest", reward.lowest != usual.lowest),
                ("reward.clip_low", reward.clip_low.is_some()),
                ("reward.clip_high", reward.clip_high.is_some()),
                ("reward.overlong_penalty", reward.overlong_penalty.is_some()),
            ];
            for (key, _) in of_scores.into_iter().filter(|(_, is_set)| *is_set && !self.is_scored()) {
                let sentence = "is set, and nothing scores the rollouts that teacher.model teaches by: name a reward plugin \
                                with reward.name, or leave it out";
                say(found, key, sentence);
            }
            if self.eval.prompts.is_some() && !self.is_scored() {
                say(
                    found,
                    "eval.prompts",
                    "is set, and nothing scores what is evaluated; with teacher.model only training can do \
                     without: name a reward plugin with reward.name, or leave it out",
                );
            }
        } else if self.distills() && (!self.algo.kl.in_reward() || self.reference.model.is_none()) {
            say(
                found,
                "algo.estimator",
                format!(
                    "is {}, which learns from a teacher alone: name one with teacher.model",
                    self.algo.estimator
                ),
            );
        }
        let Critic { clip, passes, steps_per_batch, ref optim, .. } = self.critic;
        number(found, "critic.clip", clip, |c| c >= 0.0, "at least 0");
        count(found, "critic.passes", passes as u64);
        count(found, "critic.steps_per_batch", steps_per_batch as u64);
        optim.check(found, "critic.optim");
    }
}
