//! The judge: an endpoint of the chat-completions kind, well or badly behaved.

use super::server::{Answer, Server, ok, respond};
use molt_core::chat::{Message, Role};
use molt_sandbox::{
    ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest, Judge, JudgeEndpoint, JudgeError,
};

/// Set by Cargo for every test, so that no test has to change the environment; its value stands for a key.
const KEY_ENV: &str = "CARGO_PKG_NAME";

fn judge(server: &Server) -> JudgeEndpoint {
    let url = Some(format!("{}/v1/", server.origin()));
    let key_env = Some(KEY_ENV.to_owned());
    JudgeEndpoint::new(&Judge { url, model: "grader".into(), key_env, request_s: 5, concurrency: 2 }).unwrap()
}

fn question() -> ChatRequest {
    ChatRequest {
        rollout: None,
        seed: 7 << 33,
        messages: vec![Message::new(Role::System, "Grade."), Message::new(Role::User, "6 * 7 = 42")],
        temperature: Some(0.5),
        top_p: None,
        max_tokens: Some(16),
        stop: vec!["END".into()],
    }
}

fn completion(content: &str) -> Answer {
    ok(&format!(
        r#"{{"choices":[{{"message":{{"role":"assistant","content":"{content}"}},"finish_reason":"length"}}],
            "usage":{{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}}}"#
    ))
}

#[tokio::test]
async fn a_question_is_asked_and_answered() {
    let server = Server::start(|_, _| completion("right")).await;
    let reply = judge(&server).chat(question()).await.unwrap();
    let told = ChatReply {
        text: "right".into(),
        tool_calls: vec![],
        finish: ChatFinish::Length,
        prompt_tokens: 12,
        completion_tokens: 3,
    };
    assert_eq!(reply, told);
    let request = server.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1"), "{head}");
    assert!(head.contains("authorization: Bearer molt-sandbox\r\n"), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let wanted = serde_json::json!({
        "model": "grader", "seed": 7, "temperature": 0.5, "max_tokens": 16, "stop": ["END"],
        "messages": [{"role": "system", "content": "Grade."}, {"role": "user", "content": "6 * 7 = 42"}],
    });
    assert_eq!(body, wanted);
}

#[tokio::test]
async fn a_busy_endpoint_is_asked_again() {
    let server = Server::start(|_, number| match number {
        1 => respond("429 Too Many Requests", "retry-after: 0\r\n", "slow down"),
        2 => respond("503 Service Unavailable", "retry-after: 0\r\n", ""),
        _ => completion("at last"),
    })
    .await;
    assert_eq!(judge(&server).chat(question()).await.unwrap().text, "at last");
    assert_eq!(server.requests().len(), 3);
    let server = Server::start(|_, _| respond("500 Oops", "retry-after: 0\r\n", "")).await;
    let error = judge(&server).chat(question()).await.unwrap_err();
    assert_eq!(error, ChatError::Unavailable("the judge answered 500, 4 times".into()));
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn bad_answers_are_sentences() {
    for (status, body, told) in [
        ("200 OK", "", "not a chat completion"),
        ("200 OK", "{}", "missing field `choices`"),
        ("200 OK", r#"{"choices":[]}"#, "it has no choice"),
        ("200 OK", r#"{"choices":[{"message":{}}]}"#, "it has no content"),
        ("200 OK", r#"{"choices":[{"message":{"content":7}}]}"#, "invalid type"),
        (
            "200 OK",
            r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":-1}}"#,
            "invalid value",
        ),
        (
            "400 Bad Request",
            r#"{"error":"no such model"}"#,
            "the judge answered 400: {\"error\":\"no such model\"}",
        ),
        ("302 Found", "elsewhere", "the judge answered 302"),
        ("401 Unauthorized", "the key molt-sandbox is wrong", "the judge refused the key (401)"),
    ] {
        let server = Server::start(move |_, _| respond(status, "", body)).await;
        let judge = judge(&server);
        let error = judge.chat(question()).await.unwrap_err().to_string();
        assert!(error.contains(told), "{told}: {error}");
        assert_eq!(server.requests().len(), 1, "{told}: it would not get better");
    }
}

#[tokio::test]
async fn what_is_too_long_is_told_with_the_length() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, ..."}}"#;
    let server = Server::start(move |_, _| respond("400 Bad Request", "", body)).await;
    assert_eq!(judge(&server).chat(question()).await.unwrap_err(), ChatError::ContextLength(4096));
}

#[tokio::test]
async fn an_answer_without_end_is_cut() {
    let server = Server::start(|_, _| ok(&" ".repeat(5 << 20))).await;
    let error = judge(&server).chat(question()).await.unwrap_err().to_string();
    assert!(error.contains("larger than 4 MiB"), "{error}");
}

#[tokio::test]
async fn no_answer_ends_in_time() {
    let server = Server::start(|_, _| None).await;
    let settings = Judge { url: Some(server.origin()), request_s: 1, ..Judge::default() };
    let error = JudgeEndpoint::new(&settings).unwrap().chat(question()).await.unwrap_err();
    assert_eq!(error, ChatError::Unavailable("the judge gave no answer in 1s".into()));
}

#[tokio::test]
async fn the_key_is_never_shown() {
    // Even an endpoint that repeats the key in its message.
    let server = Server::start(|_, _| respond("400 Bad Request", "", "wrong: Bearer molt-sandbox")).await;
    let judge = judge(&server);
    let error = judge.chat(question()).await.unwrap_err().to_string();
    assert!(error.contains("the judge answered 400") && !error.contains("molt-sandbox"), "{error}");
    assert!(!format!("{judge:?}").contains("molt-sandbox"));
    let url = Some("http://me:secret@127.0.0.1:1/v1?token=secret".to_owned());
    let judge = JudgeEndpoint::new(&Judge { url, ..Judge::default() }).unwrap();
    assert!(!format!("{judge:?}").contains("secret"), "{judge:?}");
}

#[test]
fn settings_that_name_no_endpoint_are_told() {
    let new = |settings: Judge| JudgeEndpoint::new(&settings).unwrap_err();
    assert_eq!(new(Judge::default()), JudgeError::NoUrl);
    let url = Some("not a url".to_owned());
    assert_eq!(new(Judge { url, ..Judge::default() }), JudgeError::BadUrl("not a url".into()));
    let key_env = Some("MOLT_NO_SUCH_KEY".to_owned());
    let settings = Judge { url: Some("http://127.0.0.1:1".into()), key_env, ..Judge::default() };
    assert_eq!(new(settings), JudgeError::NoKey("MOLT_NO_SUCH_KEY".into()));
}
