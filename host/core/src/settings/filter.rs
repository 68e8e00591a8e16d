//! Which groups are worth training on.

use super::validate::{Found, number, say};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What prompts are chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FilterBy {
    /// Nothing: all are trained.
    #[default]
    Off,
    /// The share of the finished rollouts that are solved.
    PassRate,
    /// The mean reward of the finished rollouts, before clipping and penalties.
    Reward,
}

/// Dynamic sampling (DAPO, Yu et al. 2025, section 3.2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Filter {
    /// Train only prompts whose pass_rate, or mean reward, is between rollout.filter.low and rollout.filter.high, both
    /// excluded; the others are given up as `filtered`, and replaced by the prompts that come next. Or off.
    pub by: FilterBy,
    /// A prompt must be above this.
    pub low: f64,
    /// A prompt must be below this.
    pub high: f64,
    /// The run ends, with the model saved, when more prompts than this are filtered between two batches. Unset: ten
    /// times rollout.batch_size.
    pub max_refills: Option<usize>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { by: FilterBy::Off, low: 0.0, high: 1.0, max_refills: None }
    }
}

impl Filter {
    /// Whether any prompt is filtered.
    pub fn is_on(&self) -> bool {
        self.by != FilterBy::Off
    }

    /// How many prompts may be filtered between two batches of so many.
    pub fn most_refills(&self, batch_size: usize) -> usize {
        self.max_refills.unwrap_or(batch_size.saturating_mul(10))
    }

    pub(super) fn check(&self, found: &mut Found, samples: u32) {
        let key = |name: &str| format!("rollout.filter.{name}");
        if self.by == FilterBy::Off {
            let default = Self::default();
            let given = [
                ("low", self.low != default.low),
                ("high", self.high != default.high),
                ("max_refills", self.max_refills.is_some()),
            ];
            for (name, _) in given.into_iter().filter(|(_, given)| *given) {
                let sentence = "is set, and does nothing without rollout.filter.by: take pass_rate or reward";
                say(found, &key(name), sentence);
            }
            return;
        }
        if samples < 2 {
            let sentence = format!(
                "compares the rollouts of a prompt, so rollout.samples_per_prompt must be at least 2, found {samples}"
            );
            say(found, &key("by"), sentence);
        }
        let before = found.len();
        let (good, range): (fn(f64) -> bool, _) = match self.by {
            FilterBy::PassRate => (|x| (0.0..=1.0).contains(&x), "from 0 to 1"),
            _ => (|_| true, "a finite number"),
        };
        number(found, &key("low"), self.low, good, range);
        number(found, &key("high"), self.high, good, range);
        if found.len() > before {
            return;
        }
        let reaches = |share: f64| self.low < share && share < self.high;
        if self.low >= self.high {
            let sentence = format!("is {}, but must be below rollout.filter.high, {}", self.low, self.high);
            say(found, &key("low"), sentence);
        } else if self.by == FilterBy::PassRate
            && !(0..=samples).any(|solved| reaches(f64::from(solved) / f64::from(samples)))
        {
            let sentence = format!(
                "is {}, and with rollout.filter.high {} no number of solved rollouts out of {samples} is between: \
                 widen the bounds",
                self.low, self.high
            );
            say(found, &key("low"), sentence);
        }
    }
}
