//! How a turn is sampled.

use crate::ids::Token;

/// The sampling distribution and the end of a turn. Every field is always set by the run's settings;
/// nothing is filled in from a checkpoint's generation defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits. 0 takes the most likely token.
    pub temperature: f64,
    /// Keeps the smallest set of most likely tokens whose mass reaches this, 1 keeps all.
    pub top_p: f64,
    /// Tokens of this turn at most.
    pub max_tokens: usize,
    /// A turn ends with the first of these; the token stays part of the turn.
    pub stop_tokens: Vec<Token>,
    /// A turn ends with the token that completes one of these in the decoded text.
    pub stop_strings: Vec<String>,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or a stop string.
    Stop,
    /// The token budget was spent.
    Length,
}
