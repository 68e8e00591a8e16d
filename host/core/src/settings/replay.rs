//! Training again on what was rolled out before.

use super::validate::{Found, say};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A replay buffer of prompt groups. Off unless `groups_per_batch` is above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Replay {
    /// So many groups of earlier batches are trained again with each batch, drawn at random from those that are kept. Their
    /// tokens are of older weights: algo.importance sampled, or algo.correction, makes up for that.
    pub groups_per_batch: usize,
    /// Groups that are kept: the last ones that were trained. Checkpoints hold them too.
    pub capacity: usize,
}

impl Default for Replay {
    fn default() -> Self {
        Self { groups_per_batch: 0, capacity: 256 }
    }
}

impl Replay {
    pub(super) fn check(&self, found: &mut Found, is_sync: bool) {
        if self.groups_per_batch == 0 {
            if self.capacity != Self::default().capacity {
                say(found, "replay.capacity", "is set, and does nothing without replay.groups_per_batch");
            }
            return;
        }
        if self.capacity < self.groups_per_batch {
            let sentence = format!(
                "is {}, fewer than the {} groups that each batch takes from it (replay.groups_per_batch)",
                self.capacity, self.groups_per_batch
            );
            say(found, "replay.capacity", sentence);
        }
        if is_sync {
            let sentence = "cannot go with train.sync, which is strictly on-policy: take train.sync false and \
                            train.async_queue_size 0, which waits for every update too";
            say(found, "replay.groups_per_batch", sentence);
        }
    }
}
