//! Which prompts a pass has, and in which order, by what the model made of them before.

use super::validate::{Found, number, say};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A curriculum by pass rate. A prompt is easy or hard by the share of its finished rollouts that were solved when it was
/// rolled out last; one that never was is neither. Off unless a share is below 1 or `easy_first` is set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Curriculum {
    /// A prompt is easy if its last pass rate was this at least.
    pub high: f64,
    /// A prompt is hard if its last pass rate was this at most.
    pub low: f64,
    /// The share of the easy prompts that a pass has. Prompts left out come again in a later pass, maybe; the run trains
    /// as many in all as without a curriculum, so the others come more often.
    pub easy_share: f64,
    /// The share of the hard prompts that a pass has.
    pub hard_share: f64,
    /// A pass has its easy prompts first and its hard ones last.
    pub easy_first: bool,
}

impl Default for Curriculum {
    fn default() -> Self {
        Self { high: 1.0, low: 0.0, easy_share: 1.0, hard_share: 1.0, easy_first: false }
    }
}

impl Curriculum {
    /// Whether it changes anything.
    pub fn is_on(&self) -> bool {
        self.easy_share < 1.0 || self.hard_share < 1.0 || self.easy_first
    }

    pub(super) fn check(&self, found: &mut Found, passes: u64) {
        let key = |name: &str| format!("data.curriculum.{name}");
        let share = |found: &mut Found, name: &str, value: f64| {
            number(found, &key(name), value, |share| (0.0..=1.0).contains(&share), "from 0 to 1");
        };
        share(found, "low", self.low);
        share(found, "high", self.high);
        share(found, "easy_share", self.easy_share);
        share(found, "hard_share", self.hard_share);
        if self.low >= self.high {
            let sentence = format!("is {}, but must be below data.curriculum.high, {}", self.low, self.high);
            say(found, &key("low"), sentence);
        }
        if self.is_on() {
            if passes < 2 {
                let sentence =
                    "needs data.passes of 2 at least: before the second pass no pass rate is known";
                say(found, "data.curriculum", sentence);
            }
            return;
        }
        let default = Self::default();
        let given = [("low", self.low != default.low), ("high", self.high != default.high)];
        for (name, _) in given.into_iter().filter(|(_, given)| *given) {
            let sentence =
                "is set, and does nothing without easy_share, hard_share or easy_first of data.curriculum";
            say(found, &key(name), sentence);
        }
    }
}
