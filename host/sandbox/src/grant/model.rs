//! The grant `model`: `molt:plugin/model`, of contract 0.1 and 0.2 alike, answered by a model of the run.

use molt_core::settings::GrantedModel;
use std::sync::Arc;
use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

use super::Purpose;
use crate::bindings::model as wit;
use crate::bindings::types::ToolCall;
use crate::convert;
use crate::model::{ChatError, ChatFinish, ChatReply, ChatRequest};
use crate::plugin::{Call, Data};
use crate::quote;
use crate::sandbox::Models;

/// The versions of the interface, which did not change.
const INTERFACES: [&str; 2] = ["molt:plugin/model@0.1.0", "molt:plugin/model@0.2.0"];

/// Messages of one question.
const MESSAGES: usize = 1024;

/// Bytes of all messages of one question.
const BYTES: usize = 4 << 20;

/// Texts that end an answer, and the bytes of one.
const STOPS: usize = 16;
const STOP: usize = 256;

/// Tokens of an answer.
const TOKENS: u32 = 1 << 20;

/// The model that one plugin may ask.
pub(crate) struct Model {
    pub(crate) which: GrantedModel,
    pub(crate) calls: u64,
    pub(crate) models: Arc<Models>,
}

/// The questions of one instance.
pub(crate) struct ModelState {
    model: Option<Arc<Model>>,
    call: Call,
    asked: u64,
}

impl ModelState {
    pub(crate) fn new(model: Option<Arc<Model>>, call: Call) -> Self {
        Self { model, call, asked: 0 }
    }

    /// The question and whom to ask, or why it is not asked.
    fn question(
        &mut self,
        messages: Vec<crate::bindings::types::Message>,
        sampling: wit::Sampling,
    ) -> Result<(Arc<dyn crate::ChatModel>, ChatRequest), ChatError> {
        let model = self.model.as_ref().ok_or_else(|| ChatError::Unavailable("it is not granted".into()))?;
        if self.asked >= model.calls {
            return Err(ChatError::Quota);
        }
        self.asked += 1;
        check(&messages, &sampling).map_err(ChatError::Unavailable)?;
        let unset = || ChatError::Unavailable("the run has no such model".into());
        let answering = model.models.get(model.which).ok_or_else(unset)?;
        let request = ChatRequest {
            rollout: self.call.rollout,
            seed: super::nth_seed(self.call.seed, Purpose::Question, self.asked),
            messages: convert::from_messages(messages),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            max_tokens: sampling.max_tokens,
            stop: sampling.stop,
        };
        Ok((answering, request))
    }
}

/// Links `molt:plugin/model` to the granted model.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    for interface in INTERFACES {
        linker.instance(interface)?.func_wrap_async(
            "chat",
            |mut store: StoreContextMut<'_, Data>, (messages, sampling): (Vec<_>, wit::Sampling)| {
                Box::new(async move {
                    let answer = match store.data_mut().counted().grants.model.question(messages, sampling) {
                        Ok((model, request)) => model.chat(request).await,
                        Err(error) => Err(error),
                    };
                    Ok((answer.map(reply).map_err(error),))
                })
            },
        )?;
    }
    Ok(())
}

fn reply(reply: ChatReply) -> wit::Reply {
    let call = |call: crate::ToolCall| ToolCall { name: call.name, arguments_json: call.arguments_json };
    wit::Reply {
        text: reply.text,
        tool_calls: reply.tool_calls.into_iter().map(call).collect(),
        finish: match reply.finish {
            ChatFinish::Stop => wit::Finish::Stop,
            ChatFinish::Length => wit::Finish::Length,
            ChatFinish::ToolCalls => wit::Finish::ToolCalls,
        },
        prompt_tokens: reply.prompt_tokens,
        completion_tokens: reply.completion_tokens,
    }
}

fn error(error: ChatError) -> wit::ModelError {
    match error {
        ChatError::ContextLength(tokens) => wit::ModelError::ContextLength(tokens),
        ChatError::Quota => wit::ModelError::Quota,
        ChatError::Unavailable(why) => wit::ModelError::Unavailable(quote::beginning(&why)),
    }
}

/// What can be wrong with a question, as a sentence.
fn check(messages: &[crate::bindings::types::Message], sampling: &wit::Sampling) -> Result<(), String> {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    if messages.is_empty() || messages.len() > MESSAGES {
        return Err(format!("a question has 1 to {MESSAGES} messages, and this one {}", messages.len()));
    }
    if bytes > BYTES {
        return Err(format!("a question has at most {BYTES} bytes, and this one {bytes}"));
    }
    if let Some(t) = sampling.temperature.filter(|t| *t != 0.0 && !(0.01..=2.0).contains(t)) {
        return Err(format!("temperature is {t}, but must be 0, or from 0.01 to 2"));
    }
    if let Some(p) = sampling.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
        return Err(format!("top-p is {p}, but must be above 0 and at most 1"));
    }
    if let Some(tokens) = sampling.max_tokens.filter(|tokens| !(1..=TOKENS).contains(tokens)) {
        return Err(format!("max-tokens is {tokens}, but must be from 1 to {TOKENS}"));
    }
    if sampling.stop.len() > STOPS || sampling.stop.iter().any(|s| s.is_empty() || s.len() > STOP) {
        return Err(format!(
            "stop has more than {STOPS} texts, or one that is empty or longer than {STOP} bytes"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::bindings::types::{Message, Role};

    fn sampling() -> wit::Sampling {
        wit::Sampling { temperature: None, top_p: None, max_tokens: None, stop: vec![] }
    }

    fn say(bytes: usize) -> Message {
        Message { role: Role::User, content: "a".repeat(bytes) }
    }

    #[test]
    fn only_questions_within_bounds_are_asked() {
        let one = || vec![say(1)];
        let with = |change: fn(&mut wit::Sampling)| {
            let mut sampling = sampling();
            change(&mut sampling);
            sampling
        };
        assert_eq!(check(&one(), &sampling()), Ok(()));
        let full = with(|s| {
            (s.temperature, s.top_p, s.max_tokens) = (Some(2.0), Some(1.0), Some(TOKENS));
            s.stop = vec!["x".repeat(STOP); STOPS];
        });
        assert_eq!(check(&vec![say(BYTES / MESSAGES); MESSAGES], &full), Ok(()));
        for coldest in [0.0, 0.01] {
            assert_eq!(check(&one(), &wit::Sampling { temperature: Some(coldest), ..sampling() }), Ok(()));
        }
        for (told, messages, sampling) in [
            ("messages", vec![], sampling()),
            ("messages", vec![say(1); MESSAGES + 1], sampling()),
            ("bytes", vec![say(BYTES), say(1)], sampling()),
            ("temperature", one(), with(|s| s.temperature = Some(f32::NAN))),
            ("temperature", one(), with(|s| s.temperature = Some(-0.1))),
            ("temperature", one(), with(|s| s.temperature = Some(f32::INFINITY))),
            ("temperature", one(), with(|s| s.temperature = Some(1e-45))),
            ("temperature", one(), with(|s| s.temperature = Some(0.009))),
            ("top-p", one(), with(|s| s.top_p = Some(0.0))),
            ("top-p", one(), with(|s| s.top_p = Some(f32::NAN))),
            ("max-tokens", one(), with(|s| s.max_tokens = Some(0))),
            ("max-tokens", one(), with(|s| s.max_tokens = Some(u32::MAX))),
            ("stop", one(), with(|s| s.stop = vec![String::new()])),
            ("stop", one(), with(|s| s.stop = vec!["x".into(); STOPS + 1])),
        ] {
            let why = check(&messages, &sampling).unwrap_err();
            assert!(why.contains(told), "{told}: {why}");
        }
    }
}
