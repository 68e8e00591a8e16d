//! What ends a run, as opposed to what ends a rollout.

use molt_generator::GeneratorError;

/// A reason to stop. Anything that concerns one rollout alone is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("rollouts cannot go on")]
    Generator(#[from] GeneratorError),
    #[error(
        "{:.0} of the last {window} rollouts failed in a plugin, more than the share of {max} that \
         plugins.max_error_rate allows; the last failure: {last}",
        rate * *window as f64
    )]
    ErrorRate {
        /// The share that failed, in 0 to 1.
        rate: f64,
        /// Rollouts that it is taken over.
        window: usize,
        /// The share that is allowed.
        max: f64,
        /// What the last failure said.
        last: String,
    },
    #[error("a rollout came to an unexpected end, which is a defect of Molt: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("pass@{k} needs k from 1 to the {samples} samples of a prompt")]
    PassAtK { k: u32, samples: u32 },
}
