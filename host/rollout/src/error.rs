//! What ends a run, as opposed to what ends a rollout.

use molt_core::outcome::{DropReason, Outcome};
use molt_core::window::{ErrorLimit, ErrorWindow};
use molt_generator::GeneratorError;
use std::collections::BTreeMap;

/// A reason to stop. Anything that concerns one rollout alone is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error("rollouts cannot go on")]
    Generator(#[from] GeneratorError),
    #[error(
        "{:.0} of the last {window} rollouts failed, more than the share of {max} that \
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
    #[error(
        "{filtered} prompts were filtered since the last batch, and rollout.filter.max_refills allows {max}: the model \
         solves too few of these prompts or too many; widen rollout.filter.low and high, or train other prompts"
    )]
    Filtered { filtered: usize, max: usize },
    #[error(
        "{groups} groups in a row, more than there are prompts, gave nothing to train on; dropped since the last batch: {}; \
         run.log says why{}",
        counts(dropped),
        too_long(dropped)
    )]
    Barren { groups: usize, dropped: BTreeMap<String, u64> },
    #[error("a rollout came to an unexpected end, which is a defect of Molt: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("the rollouts have ended before")]
    Ended,
    #[error("pass@{k} needs k from 1 to the {samples} samples of a prompt")]
    PassAtK { k: u32, samples: u32 },
}

/// What to do about prompts that are too long, if there are any.
pub fn too_long<N>(dropped: &BTreeMap<String, N>) -> &'static str {
    match dropped.contains_key(DropReason::PromptTooLong.label()) {
        true => {
            "; for prompts that are too long raise max_context, or leave it out for all that the model can take"
        }
        false => "",
    }
}

/// Counts by name, for a sentence.
pub fn counts<N: std::fmt::Display>(counts: &BTreeMap<String, N>) -> String {
    if counts.is_empty() {
        return "none".into();
    }
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// Watches outcomes, and ends a run in which too many rollouts fail.
#[derive(Debug)]
pub(crate) struct ErrorGuard {
    max_rate: f64,
    pub(crate) window: ErrorWindow,
    last: String,
}

impl ErrorGuard {
    /// `planned` is the number of rollouts of the whole run.
    pub(crate) fn new(limit: ErrorLimit, planned: u64) -> Self {
        let window = ErrorWindow::new(limit.window, planned);
        Self { max_rate: limit.max_rate, window, last: String::new() }
    }

    /// Takes in one outcome.
    pub(crate) fn enter(&mut self, outcome: &Outcome) -> Result<(), RolloutError> {
        let failed = match outcome {
            Outcome::Dropped(dropped) if dropped.reason.is_failure() => {
                tracing::debug!(rollout = %dropped.rollout, reason = dropped.reason.label(), "{}", dropped.detail);
                self.last.clone_from(&dropped.detail);
                true
            }
            _ => false,
        };
        self.window.push(failed);
        match self.window.rate() {
            Some(rate) if rate > self.max_rate => Err(RolloutError::ErrorRate {
                rate,
                window: self.window.size(),
                max: self.max_rate,
                last: self.last.clone(),
            }),
            _ => Ok(()),
        }
    }
}
