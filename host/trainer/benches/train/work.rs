//! What both sides are asked to do, and what they answer.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Rows of one length; every token but the first is learnt.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Whether layers are gathered and computed again in the backward pass.
    pub(crate) recompute: bool,
    pub(crate) lr: f64,
    pub(crate) weight_decay: f64,
    pub(crate) max_grad_norm: f64,
}

/// To a line with a number of steps.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) seconds: f64,
    pub(crate) loss: f64,
}

/// To the end of the input: resident bytes before the model was loaded, and at most in the steps.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) base: u64,
    pub(crate) peak: u64,
}

/// A field of this process's status, in bytes.
pub(crate) fn resident(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a running process");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}
