//! A model that a plugin may ask: what the run gives the sandbox, and what goes back and forth.

use futures_util::future::BoxFuture;
use molt_core::chat::Message;
use molt_core::ids::RolloutId;
use thiserror::Error;

use crate::environment::ToolCall;

/// Answers the questions of plugins.
pub trait ChatModel: Send + Sync + 'static {
    fn chat(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>>;
}

/// One question of a plugin. The host has checked its sizes and that its numbers are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The rollout that the asking instance works for.
    pub rollout: Option<RolloutId>,
    /// Derived from the asking instance's seed and the number of its question.
    pub seed: u64,
    pub messages: Vec<Message>,
    /// None: the model's own choice, here and below.
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub max_tokens: Option<u32>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
}

/// What the model answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatReply {
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    pub finish: ChatFinish,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
}

/// Why the model's answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFinish {
    Stop,
    /// It ran out of tokens.
    Length,
    ToolCalls,
}

/// Why the model did not answer. The plugin is told, and may go on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChatError {
    #[error("the conversation does not fit into the model's context of {0} tokens")]
    ContextLength(u32),
    #[error("the questions that the plugin may ask are spent")]
    Quota,
    #[error("the model is not available: {0}")]
    Unavailable(String),
}
