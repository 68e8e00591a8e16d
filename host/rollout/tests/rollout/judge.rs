//! A reward that asks a model: the policy, and an endpoint that speaks the protocol of chat completions.

use crate::scripted::*;
use molt_core::chat::{Message, Role};
use molt_core::ids::GroupId;
use molt_core::outcome::{Group, Outcome};
use molt_core::settings::{Access, GrantedModel, Grants, Judge, Limits};
use molt_core::trajectory::Reward;
use molt_model::Chat;
use molt_rollout::{Driver, PolicyModel, WeightedReward};
use molt_sandbox::{ChatError, ChatFinish, ChatModel, ChatRequest, JudgeEndpoint, Sandbox};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The judge plugin in a sandbox of its own, which may ask `which`.
fn judge(which: GrantedModel, model_calls: u64) -> (Sandbox, WeightedReward) {
    let sandbox = Sandbox::new(None).unwrap();
    let grants = Grants { model: Some(which), model_calls, ..Grants::default() };
    let access = Access { grants, ..Access::from(Limits::default()) };
    let plugin = sandbox.reward(&library(), "judge", access).unwrap();
    (sandbox, WeightedReward { plugin, weight: 1.0 })
}

fn only(group: &Group) -> &Outcome {
    assert_eq!(group.outcomes.len(), 1);
    &group.outcomes[0]
}

async fn play(driver: &Driver<Scripted>) -> Group {
    driver.group(GroupId(3), &task("2+2?", Some("4"), &[("rubric", "Be short.")]), 0..1).await.unwrap()
}

fn reward_of(outcome: &Outcome) -> &Reward {
    match outcome {
        Outcome::Finished(rollout) => &rollout.reward,
        Outcome::Dropped(dropped) => panic!("{dropped:?}"),
    }
}

fn detail_of(outcome: &Outcome) -> (&str, &str) {
    match outcome {
        Outcome::Finished(rollout) => panic!("{rollout:?}"),
        Outcome::Dropped(dropped) => (dropped.reason.label(), &dropped.detail),
    }
}

#[tokio::test]
async fn the_policy_can_judge_itself() {
    let (sandbox, reward) = judge(GrantedModel::Policy, 16);
    // It answers the question, and grades when it is shown an answer between marks.
    let mut driver =
        driver(single_turn(), vec![reward], |last, _| match last.contains("The answer to grade") {
            true => "It is right.\nGrade: 9".into(),
            false => "4".into(),
        });
    driver.turn.max_context = 2500;
    let turn = driver.turn.clone();
    let (generator, chat) = (Arc::clone(&driver.generator), Arc::clone(&driver.chat));
    sandbox.provide(GrantedModel::Policy, Arc::new(PolicyModel { generator, chat, turn }));
    let group = play(&driver).await;
    assert_eq!(*reward_of(only(&group)), Reward::Scored { value: 0.9, solved: true });
    let requests = driver.generator.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    let asked = driver.chat.tokenizer().decode(&requests[1].prompt, false);
    for part in ["You grade answers", "user: 2+2?", "The reference answer:\n4", "Be short.", "===\n4\n==="] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert_eq!((requests[1].sampling.temperature, requests[1].sampling.max_tokens), (0.0, 512));
    assert_ne!(requests[0].seed, requests[1].seed);
}

#[tokio::test]
async fn a_judge_that_is_not_there_drops_and_a_context_too_short_does_not() {
    let (sandbox, reward) = judge(GrantedModel::Policy, 1);
    let mut driver = driver(single_turn(), vec![reward], |_, _| "four".into());
    let group = play(&driver).await;
    assert!(matches!(detail_of(only(&group)), ("infra", text) if text.contains("unavailable")));
    let mut turn = driver.turn.clone();
    turn.max_context = 100;
    let (generator, chat) = (Arc::clone(&driver.generator), Arc::clone(&driver.chat));
    let model = |turn| PolicyModel { generator: Arc::clone(&generator), chat: Arc::clone(&chat), turn };
    sandbox.provide(GrantedModel::Policy, Arc::new(model(turn.clone())));
    let group = play(&driver).await;
    assert!(matches!(reward_of(only(&group)), Reward::Invalid { reason } if reason.contains("100 tokens")));
    // An answer without a grade is asked for again, and one question is all that is granted.
    turn.max_context = 4000;
    sandbox.provide(GrantedModel::Policy, Arc::new(model(turn)));
    driver.generator = generator;
    let group = play(&driver).await;
    assert!(matches!(detail_of(only(&group)), ("infra", text) if text.contains("model_calls")));
}

#[tokio::test]
async fn the_policy_as_a_model_keeps_to_the_question() {
    let driver = driver(single_turn(), vec![], |last, _| match last {
        "call" => "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>".into(),
        other => format!("{other} END and more"),
    });
    let (generator, chat, turn) = (driver.generator.clone(), driver.chat.clone(), driver.turn.clone());
    let model = PolicyModel { generator, chat, turn };
    let ask = |content: &str| ChatRequest {
        rollout: None,
        seed: 11,
        messages: vec![Message::new(Role::User, content)],
        temperature: Some(0.5),
        top_p: None,
        max_tokens: None,
        stop: vec!["END".into()],
    };
    let reply = model.chat(ask("say")).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.finish), ("say ", ChatFinish::Stop));
    assert_eq!(reply.prompt_tokens as usize, driver.chat.prompt(&ask("say").messages).unwrap().len());
    let reply = model.chat(ask("call")).await.unwrap();
    assert_eq!((reply.finish, reply.tool_calls[0].name.as_str()), (ChatFinish::ToolCalls, "f"));
    let reply = model.chat(ChatRequest { max_tokens: Some(2), ..ask("say") }).await.unwrap();
    assert_eq!((reply.finish, reply.completion_tokens), (ChatFinish::Length, 2));
    let requests = driver.generator.requests.lock().unwrap().clone();
    assert!(requests.iter().all(|request| request.seed == 11 && request.sampling.temperature == 0.5));
    assert_eq!(requests[0].sampling.stop_strings, ["END"]);
    let long = "x".repeat(5000);
    assert_eq!(model.chat(ask(&long)).await, Err(ChatError::ContextLength(4000)));
    // Text that cannot fit is not even rendered, which this template would refuse.
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("strict.jinja");
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
                  <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(&template, source).unwrap();
    let chat = Arc::new(Chat::load(&chatml(), Some(&template)).unwrap());
    let strict = PolicyModel { chat, ..model };
    let tool =
        |bytes: usize| ChatRequest { messages: vec![Message::new(Role::Tool, "x".repeat(bytes))], ..ask("") };
    assert!(
        matches!(strict.chat(tool(9)).await, Err(ChatError::Unavailable(why)) if why.contains("no tools"))
    );
    assert_eq!(strict.chat(tool(4000 * 128 + 1)).await, Err(ChatError::ContextLength(4000)));
}

/// A server that answers each request with the next of `answers`, a status and the judge's words, and keeps the bodies.
fn serve(answers: Vec<(u16, &'static str)>) -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let bodies = Arc::clone(&seen);
    std::thread::spawn(move || {
        for (status, words) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            bodies.lock().unwrap().push(read_json(&mut stream));
            let message = json!({"role": "assistant", "content": words});
            let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
            let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
            let body = json!({"object": "chat.completion", "choices": [choice], "usage": usage}).to_string();
            let head =
                format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
            write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    (address, seen)
}

/// The body of one HTTP request.
fn read_json(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).unwrap();
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0usize) {
            return serde_json::from_str(body).unwrap();
        }
    }
}

#[tokio::test]
async fn an_endpoint_judges() {
    let (address, seen) = serve(vec![(200, "Hm."), (200, "Right, but long.\n**Grade: 6/10**"), (400, "no")]);
    let (sandbox, reward) = judge(GrantedModel::Judge, 16);
    let settings =
        Judge { url: Some(format!("http://{address}/v1")), model: "grader".into(), ..Judge::default() };
    sandbox.provide(GrantedModel::Judge, Arc::new(JudgeEndpoint::new(&settings).unwrap()));
    let driver = driver(single_turn(), vec![reward], |_, _| "It is 4.".into());
    let group = play(&driver).await;
    assert_eq!(*reward_of(only(&group)), Reward::Scored { value: 0.6, solved: false });
    let Outcome::Finished(rollout) = only(&group) else { panic!("dropped") };
    assert_eq!((rollout.metrics["judge_grade"], rollout.metrics["reward/judge"]), (6.0, 0.6));
    {
        let bodies = seen.lock().unwrap();
        assert_eq!(bodies.len(), 2, "an answer without a grade is asked for again");
        assert_eq!((&bodies[0]["model"], &bodies[0]["max_tokens"]), (&json!("grader"), &json!(512)));
        let words = bodies[0]["messages"][1]["content"].as_str().unwrap();
        assert!(
            words.contains("The reference answer:\n4") && words.contains("===\nIt is 4.\n==="),
            "{words}"
        );
        assert_ne!(bodies[0]["seed"], bodies[1]["seed"], "another question, another seed");
    }
    let group = play(&driver).await;
    let (label, detail) = detail_of(only(&group));
    assert_eq!(label, "infra");
    assert!(detail.contains("400") && detail.contains("3.0"), "{detail}");
}
