//! How a rollout ended. Every rollout that was started has exactly one outcome.

use crate::chat::Task;
use crate::ids::{GroupId, RolloutId};
use crate::trajectory::Trajectory;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The end of one rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Scored, and fit to train on.
    Finished(Box<Trajectory>),
    /// Not trained on, and counted by reason.
    Dropped(Dropped),
}

/// A rollout that is not trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    pub rollout: RolloutId,
    pub reason: DropReason,
    /// A sentence for people: which plugin, which limit, what it said.
    pub detail: String,
}

/// Why a rollout was dropped. The label of each names it in metrics and in `summary.json`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// The rendered prompt leaves no room for a turn.
    PromptTooLong,
    /// Nothing was sampled, so there is nothing to train.
    NoActionTokens,
    /// Neither the environment nor a reward plugin scored the rollout.
    NoReward,
    /// The chat template refuses the messages that the environment gave.
    Unrenderable,
    /// Too few rollouts of its group could be trained on, so the whole group was given up.
    GroupUnusable,
    /// Its group was of no use to train on by `rollout.filter`, though it could be.
    Filtered,
    /// A plugin failed; the text is the kind of failure, e.g. `cpu-limit` or `trap`.
    Plugin(Cow<'static, str>),
}

impl DropReason {
    /// Whether a plugin is to blame, by failing, by its messages, or by not scoring: counts towards the run's
    /// error rate.
    pub fn is_failure(&self) -> bool {
        matches!(self, DropReason::Plugin(_) | DropReason::Unrenderable | DropReason::NoReward)
    }

    /// The name in metrics.
    pub fn label(&self) -> &str {
        match self {
            DropReason::PromptTooLong => "prompt-too-long",
            DropReason::NoActionTokens => "no-action-tokens",
            DropReason::NoReward => "no-reward",
            DropReason::Unrenderable => "unrenderable",
            DropReason::GroupUnusable => "group-unusable",
            DropReason::Filtered => "filtered",
            DropReason::Plugin(kind) => kind,
        }
    }
}

/// How many rollouts were dropped for each reason, by its label.
pub fn by_reason(dropped: &[Dropped]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for drop in dropped {
        *counts.entry(drop.reason.label().to_owned()).or_default() += 1;
    }
    counts
}

/// All rollouts of one dispatched prompt, in member order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub id: GroupId,
    pub task: Task,
    pub outcomes: Vec<Outcome>,
}

impl Group {
    /// The rollouts that can be trained on.
    pub fn finished(&self) -> impl Iterator<Item = &Trajectory> {
        self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Finished(trajectory) => Some(trajectory.as_ref()),
            Outcome::Dropped(_) => None,
        })
    }
}
