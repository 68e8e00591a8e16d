//! Token-exact sampling under a known weight version.

mod admission;
mod batch;
mod engine;
mod sample;
mod stop;

pub use engine::{Engine, EngineStats};

use molt_core::ids::{Token, WeightVersion};
use molt_core::sampling::{Finish, Sampling};
use molt_core::trajectory::{Routing, Sampled};
use std::future::Future;
use tch::Tensor;

/// One turn to sample.
#[derive(Debug, Clone)]
pub struct Request {
    /// The exact tokens so far; at least one.
    pub prompt: Vec<Token>,
    pub sampling: Sampling,
    /// Decides every random choice of this turn.
    pub seed: u64,
    /// Where tokens of the prompt go again, if the weights are still those that sent them there: in a turn behind
    /// others, what those were sampled with.
    pub routing: Option<Routing>,
}

/// A sampled turn, in order. Empty only when `sampling.max_tokens` is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    pub sampled: Vec<Sampled>,
    pub finish: Finish,
    /// The experts of all tokens of prompt and turn but the last, by the weights that sampled the last: if weights
    /// were swapped on the way, all was computed again. None of a model without experts, or of an empty turn.
    pub routing: Option<Routing>,
}

/// New weights: all parameters under the names of [`molt_model::Decoder::parameters`], not shared with the trainer.
#[derive(Debug)]
pub struct WeightUpdate {
    pub version: WeightVersion,
    pub parameters: Vec<(String, Tensor)>,
}

/// Why a turn was not sampled or weights were not loaded.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    #[error("a prompt of {prompt} tokens leaves no room in a context of {context}")]
    PromptTooLong { prompt: usize, context: usize },
    #[error("weights of version {version} do not fit the model: {detail}")]
    Weights { version: WeightVersion, detail: String },
    #[error("a turn cannot be sampled like this: {0}")]
    Invalid(String),
    #[error(
        "the model gives no finite distribution after {tokens} tokens under weights of version {version}; \
         its weights are likely to be broken"
    )]
    NotFinite { tokens: usize, version: WeightVersion },
    #[error("the generator stopped: {0}")]
    Stopped(String),
}

/// Samples turns. Implemented by the embedded engine, and by remote servers.
pub trait Generator: Send + Sync + 'static {
    /// Ids in; ids, log-probabilities and weight versions out.
    fn generate(&self, request: Request) -> impl Future<Output = Result<Generation, GeneratorError>> + Send;

    /// Pauses, swaps, resumes. Turns in flight are kept, and go on under the new weights.
    fn load_weights(&self, update: WeightUpdate) -> impl Future<Output = Result<(), GeneratorError>> + Send;
}
