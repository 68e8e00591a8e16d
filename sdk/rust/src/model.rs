//! A model to ask: the policy in training or a judge, as the run grants it.
//!
//! A plugin that calls [`chat`] imports `molt:plugin/model`, and is refused by a run that does not grant it.
//! Built natively there is no model: a unit test must not call it.

use crate::bindings::model as wit;
use crate::types::Message;

pub use wit::{Finish, ModelError, Reply, Sampling};

/// Asks the model. The call waits for the answer, and the time is not the plugin's CPU time.
///
/// # Errors
/// The conversation is too long, the granted questions are spent, or the model does not answer.
pub fn chat(messages: &[Message], sampling: &Sampling) -> Result<Reply, ModelError> {
    wit::chat(messages, sampling)
}

/// The model's own choices.
impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: None, top_p: None, max_tokens: None, stop: Vec::new() }
    }
}
