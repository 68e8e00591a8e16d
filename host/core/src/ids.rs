//! Names for the things that a run counts.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A vocabulary id, as the tokenizer and the model count them.
pub type Token = u32;

/// Number of optimiser steps behind a set of weights: 0 is the initial model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct WeightVersion(pub u64);

/// One prompt dispatched once: its rollouts are compared with each other.
/// Groups are numbered in dispatch order, across passes over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// One episode: member `member` of group `group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RolloutId {
    pub group: GroupId,
    pub member: u32,
}

impl fmt::Display for WeightVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group.0, self.member)
    }
}
