//! The model: asked as often as granted, with questions that were checked.

use super::{access, common};
use futures_util::future::BoxFuture;
use molt_sandbox::{
    ChatError, ChatFinish, ChatModel, ChatReply, ChatRequest, GrantedModel, Grants, LoadError, Reward,
    Sandbox, Verdict,
};
use std::sync::{Arc, Mutex};

/// A model that repeats the question, and remembers what it was asked.
#[derive(Default)]
struct Echo {
    asked: Mutex<Vec<ChatRequest>>,
}

impl ChatModel for Echo {
    fn chat(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>> {
        let text = request.messages.last().map_or_else(String::new, |message| message.content.clone());
        self.asked.lock().unwrap().push(request);
        let answer = match text.as_str() {
            "too long" => Err(ChatError::ContextLength(4096)),
            "down" => Err(ChatError::Unavailable("it is\ndown".into())),
            _ => Ok(ChatReply {
                text,
                tool_calls: vec![],
                finish: ChatFinish::Stop,
                prompt_tokens: 1,
                completion_tokens: 1,
            }),
        };
        Box::pin(async move {
            tokio::task::yield_now().await;
            answer
        })
    }
}

fn load(sandbox: &Sandbox, calls: u64) -> Reward {
    let grants = Grants { model: Some(GrantedModel::Judge), model_calls: calls, ..Grants::default() };
    sandbox.reward(&common::library(), "grant-model", access(grants)).unwrap()
}

async fn ask(reward: &Reward, question: &str, times: &str) -> String {
    match reward.score(common::call(1), &common::sample(question, Some(times))).await.unwrap() {
        Verdict::Invalid(answer) => answer,
        other => panic!("{question}: {other:?}"),
    }
}

#[tokio::test]
async fn a_granted_model_answers_up_to_its_quota() {
    let sandbox = Sandbox::new(None).unwrap();
    let reward = load(&sandbox, 3);
    assert_eq!(ask(&reward, "hello", "1").await, "unavailable: the run has no such model");
    let model = Arc::new(Echo::default());
    sandbox.provide(GrantedModel::Judge, model.clone());
    assert_eq!(ask(&reward, "hello", "5").await, "hello|hello|hello|quota|quota");
    assert_eq!(ask(&reward, "hello", "1").await, "hello", "the next instance has its own");
    let asked = model.asked.lock().unwrap();
    assert_eq!(asked.len(), 4);
    let first = &asked[0];
    assert_eq!(
        (first.rollout, first.temperature, first.max_tokens),
        (common::call(1).rollout, Some(0.5), Some(16))
    );
    let seeds: std::collections::HashSet<u64> = asked[..3].iter().map(|request| request.seed).collect();
    assert_eq!(seeds.len(), 3, "every question has its own seed");
    assert_eq!(asked[3].seed, first.seed, "and the same in a replay");
}

#[tokio::test]
async fn what_the_model_says_instead_of_an_answer_is_told() {
    let sandbox = Sandbox::new(None).unwrap();
    sandbox.provide(GrantedModel::Judge, Arc::new(Echo::default()));
    let reward = load(&sandbox, 16);
    assert_eq!(ask(&reward, "too long", "1").await, "context 4096");
    assert_eq!(ask(&reward, "down", "1").await, "unavailable: it is down");
    assert_eq!(
        ask(&reward, "nan", "1").await,
        "unavailable: temperature is NaN, but must be 0, or from 0.01 to 2"
    );
    // The policy is another grant.
    let grants = Grants { model: Some(GrantedModel::Policy), ..Grants::default() };
    let reward = sandbox.reward(&common::library(), "grant-model", access(grants)).unwrap();
    assert_eq!(ask(&reward, "hello", "1").await, "unavailable: the run has no such model");
}

#[tokio::test]
async fn a_plugin_of_contract_0_1_asks_too() {
    let sandbox = Sandbox::new(None).unwrap();
    sandbox.provide(GrantedModel::Policy, Arc::new(Echo::default()));
    let grants = Grants { model: Some(GrantedModel::Policy), ..Grants::default() };
    let reward = sandbox.reward(&common::library(), "grant-model-0-1", access(grants)).unwrap();
    assert_eq!(ask(&reward, "hello", "1").await, "hello");
    assert_eq!(ask(&reward, "too long", "1").await, "ModelError::ContextLength(4096)");
}

#[tokio::test]
async fn guests_that_wait_block_no_thread() {
    /// Answers when eight are asking.
    struct Meeting(tokio::sync::Barrier);
    impl ChatModel for Meeting {
        fn chat(&self, _: ChatRequest) -> BoxFuture<'_, Result<ChatReply, ChatError>> {
            Box::pin(async {
                self.0.wait().await;
                Err(ChatError::ContextLength(8))
            })
        }
    }
    let sandbox = Sandbox::new(None).unwrap();
    sandbox.provide(GrantedModel::Judge, Arc::new(Meeting(tokio::sync::Barrier::new(8))));
    let reward = load(&sandbox, 1);
    // One thread runs this test: a guest that blocked it would wait for the others forever.
    let asking = (0..8).map(|_| ask(&reward, "hello", "1"));
    assert_eq!(futures_util::future::join_all(asking).await, ["context 8"; 8]);
}

#[test]
fn without_a_grant_the_plugin_is_refused_with_the_setting() {
    let error = common::SANDBOX.reward(&common::library(), "grant-model", access(Grants::default()));
    let error = error.map(|_| ()).unwrap_err();
    assert!(matches!(error, LoadError::NotGranted { .. }), "{error}");
    assert!(error.to_string().contains("plugins.grant.grant-model.model = \"judge\""), "{error}");
}
