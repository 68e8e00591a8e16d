//! A judge: a model behind an HTTP endpoint of the chat-completions kind.

use futures_util::future::BoxFuture;
use molt_core::chat::Role;
use molt_core::settings::Judge;
use reqwest::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;

use super::client;
use crate::environment::ToolCall;
use crate::model::{ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest};
use crate::quote;

/// Bytes of an answer.
const ANSWER: usize = 4 << 20;

/// Tries of one question, and the pause before the second, which doubles.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// Answers questions by asking the endpoint that the settings name.
pub struct JudgeEndpoint {
    client: Client,
    url: Url,
    model: String,
    key: Option<Key>,
    time: Duration,
    slots: Semaphore,
}

/// The settings under `judge` name no endpoint that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JudgeError {
    #[error("judge.url is not set, so there is no judge")]
    NoUrl,
    #[error("judge.url is {0:?}, which is not a URL")]
    BadUrl(String),
    #[error("judge.key_env names {0}, which is not set in the environment")]
    NoKey(String),
    #[error("the key in {0} holds characters that no header can carry")]
    BadKey(String),
    #[error("no HTTP client for the judge: {0}")]
    Client(String),
}

/// Without the key, and without what of the URL may be one.
impl fmt::Debug for JudgeEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgeEndpoint").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

impl JudgeEndpoint {
    /// Reads the settings and the key; asks nothing yet.
    ///
    /// # Errors
    /// There is no URL, or no key where the settings name one.
    pub fn new(judge: &Judge) -> Result<Self, JudgeError> {
        let base = judge.url.as_deref().ok_or(JudgeError::NoUrl)?;
        let url = format!("{}/chat/completions", base.trim_end_matches('/'));
        let url = Url::parse(&url).map_err(|_| JudgeError::BadUrl(base.to_owned()))?;
        let key = judge.key_env.as_deref().map(|name| {
            let key = std::env::var(name).map_err(|_| JudgeError::NoKey(name.to_owned()))?;
            Key::new(key).ok_or_else(|| JudgeError::BadKey(name.to_owned()))
        });
        Ok(Self {
            client: client::builder().build().map_err(|e| JudgeError::Client(e.to_string()))?,
            url,
            model: judge.model.clone(),
            key: key.transpose()?,
            time: Duration::from_secs(judge.request_s),
            slots: Semaphore::new(judge.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    async fn ask(&self, request: &ChatRequest) -> Result<ChatReply, ChatError> {
        let body = self.body(request);
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match self.send(&body).await {
                Sent::Done(answer) => return answer,
                Sent::Again { after, why } => {
                    tracing::debug!("the judge is asked again: {why}");
                    tokio::time::sleep(after.unwrap_or(pause)).await;
                    pause *= 2;
                }
            }
        }
        match self.send(&body).await {
            Sent::Done(answer) => answer,
            Sent::Again { why, .. } => Err(ChatError::Unavailable(format!("{why}, {TRIES} times"))),
        }
    }

    fn body(&self, request: &ChatRequest) -> Value {
        let role = |role| match role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let messages: Vec<Value> = request
            .messages
            .iter()
            .map(|message| json!({"role": role(message.role), "content": message.content}))
            .collect();
        // 31 bits: some servers keep a seed in a signed integer.
        let mut body = json!({"model": self.model, "messages": messages, "seed": request.seed >> 33});
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        set("temperature", request.temperature.map(Value::from));
        set("top_p", request.top_p.map(Value::from));
        set("max_tokens", request.max_tokens.map(Value::from));
        set("stop", (!request.stop.is_empty()).then(|| json!(request.stop)));
        body
    }

    async fn send(&self, body: &Value) -> Sent {
        let mut message = self.client.post(self.url.clone()).json(body);
        if let Some(key) = &self.key {
            message = message.header(AUTHORIZATION, key.header.clone());
        }
        let mut response = match message.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Sent::again("the judge cannot be reached"),
            Err(_) => return Sent::again("the judge broke the connection off"),
        };
        let status = response.status();
        let after = retry_after(&response);
        let answer = match read(&mut response).await {
            Ok(answer) => answer,
            Err(why) => return Sent::Done(Err(ChatError::Unavailable(why.into()))),
        };
        if status.is_success() {
            return Sent::Done(parse(&answer));
        }
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            return Sent::Again { after, why: format!("the judge answered {}", status.as_u16()) };
        }
        Sent::Done(Err(self.refused(status, &answer)))
    }

    /// Why the endpoint refused the question, in its own words unless they are about the key.
    fn refused(&self, status: StatusCode, answer: &[u8]) -> ChatError {
        let text = String::from_utf8_lossy(answer);
        if let Some(tokens) = context_length(&text) {
            return ChatError::ContextLength(tokens);
        }
        let text = match &self.key {
            Some(key) if !key.text.is_empty() => text.replace(&key.text, "…"),
            _ => text.into_owned(),
        };
        let code = status.as_u16();
        ChatError::Unavailable(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!("the judge refused the key ({code})"),
            _ => format!("the judge answered {code}: {}", quote::beginning(&text)),
        })
    }
}

impl ChatModel for JudgeEndpoint {
    fn chat(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>> {
        Box::pin(async move {
            let closed = |_| ChatError::Unavailable("the judge is closed".into());
            let _slot = self.slots.acquire().await.map_err(closed)?;
            let late = |_| ChatError::Unavailable(format!("the judge gave no answer in {:?}", self.time));
            tokio::time::timeout(self.time, self.ask(&request)).await.map_err(late)?
        })
    }
}

/// What came of one try.
enum Sent {
    Done(Result<ChatReply, ChatError>),
    /// It may work later; `after` is when, if the endpoint says it.
    Again {
        after: Option<Duration>,
        why: String,
    },
}

impl Sent {
    fn again(why: &str) -> Self {
        Self::Again { after: None, why: why.to_owned() }
    }
}

/// The secret of the endpoint: sent in one header, and taken out of everything that is quoted.
struct Key {
    header: HeaderValue,
    text: String,
}

impl Key {
    fn new(text: String) -> Option<Self> {
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        header.set_sensitive(true);
        Some(Self { header, text })
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

async fn read(response: &mut Response) -> Result<Vec<u8>, &'static str> {
    let mut answer = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| "the judge broke its answer off")? {
        if answer.len() + chunk.len() > ANSWER {
            return Err("the judge's answer is larger than 4 MiB");
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

/// The number in "maximum context length is 4096 tokens", which servers of this kind say.
fn context_length(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("maximum context length is ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Answer,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Tool>>,
}

#[derive(Deserialize)]
struct Tool {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Deserialize, Default)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
}

fn parse(answer: &[u8]) -> Result<ChatReply, ChatError> {
    let bad =
        |why: String| ChatError::Unavailable(format!("the judge's answer is not a chat completion: {why}"));
    let completion: Completion = serde_json::from_slice(answer).map_err(|e| bad(e.to_string()))?;
    let choice = completion.choices.into_iter().next().ok_or_else(|| bad("it has no choice".into()))?;
    let call = |tool: Tool| ToolCall { name: tool.function.name, arguments_json: tool.function.arguments };
    let tool_calls: Vec<ToolCall> =
        choice.message.tool_calls.unwrap_or_default().into_iter().map(call).collect();
    let text = match choice.message.content {
        None if tool_calls.is_empty() => return Err(bad("it has no content".into())),
        content => content.unwrap_or_default(),
    };
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => ChatFinish::Length,
        Some("tool_calls") => ChatFinish::ToolCalls,
        _ => ChatFinish::Stop,
    };
    let Usage { prompt_tokens, completion_tokens } = completion.usage.unwrap_or_default();
    Ok(ChatReply { text, tool_calls, finish, prompt_tokens, completion_tokens })
}
