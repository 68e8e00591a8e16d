//! Rewards: score a finished rollout.

pub use crate::bindings::reward::exports::molt::plugin::reward::{Grade, Guest as Reward, Sample, Verdict};

impl Verdict {
    /// A reward without metrics; the task counts as solved when it is at least 1.
    pub fn reward(reward: f64) -> Self {
        Verdict::Scored(Grade { reward, solved: None, metrics: Vec::new() })
    }

    /// 1 for a right answer, 0 for a wrong one.
    pub fn correct(correct: bool) -> Self {
        Self::reward(if correct { 1.0 } else { 0.0 })
    }
}
