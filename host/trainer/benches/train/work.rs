//! What ranks of both sides are asked to do, and what they answer.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Rows of one length; every token but the first is learnt.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// Whether layers are gathered and computed again in the backward pass.
    pub(crate) recompute: bool,
    /// Whether one unit is sent while another computes; the peer always does so.
    pub(crate) prefetch: bool,
    pub(crate) lr: f64,
    pub(crate) weight_decay: f64,
    pub(crate) max_grad_norm: f64,
}

impl Work {
    /// Rows of so many tokens, not counting the first.
    pub(crate) fn new((rows, tokens): (usize, usize), vocabulary: usize, recompute: bool) -> Self {
        // Knuth's multiplicative hash: all over the vocabulary, and the same in every run.
        let token = |n: usize| (n as u64 * 2_654_435_761 % (1 << 32) % vocabulary as u64) as u32;
        let row = |row: usize| (0..=tokens).map(|n| token(7919 * row + n)).collect();
        let tokens = (0..rows).map(row).collect();
        Self { tokens, recompute, prefetch: true, lr: 1e-4, weight_decay: 0.1, max_grad_norm: 1.0 }
    }
}

/// To a line with a number of steps.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) seconds: f64,
    pub(crate) loss: f64,
}

/// To the end of the input.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct End {
    /// Resident bytes before the model was loaded.
    pub(crate) base: u64,
    /// Resident bytes at most; of the peer, in the steps.
    pub(crate) peak: u64,
    /// Bytes sent in gathers and in scatters: by our rank 0.
    #[serde(default)]
    pub(crate) sent: [u64; 2],
    /// Bytes that our rank wrote to sockets and files meanwhile.
    #[serde(default)]
    pub(crate) written: u64,
}

/// What this process has written, in bytes.
pub(crate) fn written() -> u64 {
    field("/proc/self/io", "wchar:")
}

/// A field of this process's status, in bytes.
pub(crate) fn resident(name: &str) -> u64 {
    1024 * field("/proc/self/status", name)
}

fn field(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a running process");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
