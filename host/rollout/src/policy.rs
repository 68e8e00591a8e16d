//! The policy as a model that plugins may ask, for those with the grant `model = "policy"`.

use crate::episode::{TurnSettings, may_fit};
use crate::tool_calls;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use molt_core::ids::Token;
use molt_core::sampling::{Finish, Sampling};
use molt_generator::{Generation, Generator, GeneratorError, Request};
use molt_model::Chat;
use molt_sandbox::{ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest};
use std::sync::Arc;

/// Answers with the weights that the generator has at the time.
pub struct PolicyModel<G: Generator> {
    pub generator: Arc<G>,
    pub chat: Arc<Chat>,
    /// How it answers, as far as a question does not say: an answer is one turn.
    pub turn: TurnSettings,
}

impl<G: Generator> ChatModel for PolicyModel<G> {
    fn chat(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>> {
        self.answer(request).boxed()
    }
}

impl<G: Generator> PolicyModel<G> {
    async fn answer(&self, request: ChatRequest) -> Result<ChatReply, ChatError> {
        if !may_fit(&request.messages, self.turn.max_context) {
            return Err(context_length(self.turn.max_context));
        }
        let unavailable = |error: &dyn std::error::Error| ChatError::Unavailable(error.to_string());
        let prompt = self.chat.prompt(&request.messages).map_err(|error| unavailable(&error))?;
        if prompt.is_empty() {
            return Err(ChatError::Unavailable("the chat template renders the question to no token".into()));
        }
        let room = self.turn.max_context.saturating_sub(prompt.len());
        if room == 0 {
            return Err(context_length(self.turn.max_context));
        }
        let prompt_tokens = count(prompt.len());
        let sampling = sampling(&request, &self.turn.sampling, room);
        let asked = Request { prompt, sampling, seed: request.seed, routing: None };
        let Generation { sampled, finish, .. } =
            self.generator.generate(asked).await.map_err(|error| match error {
                GeneratorError::PromptTooLong { context, .. } => context_length(context),
                error => unavailable(&error),
            })?;
        let tokens: Vec<Token> = sampled.iter().map(|sampled| sampled.token).collect();
        let text = self.chat.tokenizer().decode(&tokens, true);
        let text = before(text, &request.stop);
        let tool_calls = tool_calls::parse(&text);
        let finish = match finish {
            Finish::Length => ChatFinish::Length,
            Finish::Stop if tool_calls.is_empty() => ChatFinish::Stop,
            Finish::Stop => ChatFinish::ToolCalls,
        };
        Ok(ChatReply { text, tool_calls, finish, prompt_tokens, completion_tokens: count(tokens.len()) })
    }
}

/// What the question says, else what the turns of the run are sampled with, within `room` tokens.
fn sampling(request: &ChatRequest, run: &Sampling, room: usize) -> Sampling {
    let asked = |tokens: u32| usize::try_from(tokens).unwrap_or(usize::MAX);
    let mut stop_strings = run.stop_strings.clone();
    stop_strings.extend(request.stop.iter().cloned());
    Sampling {
        temperature: request.temperature.map_or(run.temperature, f64::from),
        top_p: request.top_p.map_or(run.top_p, f64::from),
        max_tokens: request.max_tokens.map_or(run.max_tokens, asked).min(room),
        stop_tokens: run.stop_tokens.clone(),
        stop_strings,
    }
}

/// `text` up to the first of the stop strings of the question, which is no part of the answer.
fn before(mut text: String, stop: &[String]) -> String {
    let end = stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
    text.truncate(end.unwrap_or(text.len()));
    text
}

fn context_length(tokens: usize) -> ChatError {
    ChatError::ContextLength(count(tokens))
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
