//! Code: run by an interpreter whose limits and failures are its own.

use super::{access, common};
use molt_sandbox::{Access, Call, Environment, Episode, Grants, Limits, LoadError};

fn granted(code_limits: Limits) -> Environment {
    let grants = Grants { code: Some("grant-interpreter".into()), ..Grants::default() };
    let access = Access { code_limits, ..access(grants) };
    common::SANDBOX.environment(&common::library(), "grant-code", access).unwrap()
}

fn limits() -> Limits {
    Limits { memory_mib: 16, cpu_ms: 2000, output_kib: 1024, ..Limits::default() }
}

async fn open(environment: &Environment, seed: u64) -> Episode {
    environment.open(Call { rollout: Some(common::rollout(1)), seed }, &common::task(None)).await.unwrap()
}

async fn step(episode: &mut Episode, code: &str) -> String {
    let transition = episode.step(&common::say(code)).await.unwrap();
    transition.messages.into_iter().next().unwrap().content
}

#[tokio::test]
async fn state_lasts_within_a_session_and_nowhere_else() {
    let environment = granted(limits());
    let mut episode = open(&environment, 1).await;
    assert_eq!(
        step(&mut episode, "remember this\nrecall\nprint that\nnonsense").await,
        "|this|that|unknown word: nonsense"
    );
    assert_eq!(
        step(&mut episode, "recall\nsession 1\nrecall\nremember other\nsession 0\nrecall").await,
        "this|ok|||ok|this"
    );
    assert_eq!(step(&mut open(&environment, 1).await, "recall").await, "", "never to another episode");
}

#[tokio::test]
async fn a_stopped_session_begins_anew() {
    let environment = granted(limits());
    for (code, told) in [("grow", "memory 16"), ("flood", "output 1024"), ("spin", "time 2000")] {
        let mut episode = open(&environment, 1).await;
        let said = step(&mut episode, &format!("remember this\n{code}\nrecall\nprint on")).await;
        assert_eq!(said, format!("|{told}||on"), "{code}");
    }
    let mut episode = open(&environment, 1).await;
    let said = step(&mut episode, "panic\nprint on").await;
    assert!(said.starts_with("crashed plugin `grant-interpreter` crashed"), "{said}");
    assert!(said.contains("this interpreter panics on purpose") && said.ends_with("|on"), "{said}");
    let said = step(&mut episode, "file /etc/passwd\nprint on").await;
    assert!(
        said.starts_with("crashed plugin `grant-interpreter` asked for a file") && said.ends_with("|on"),
        "{said}"
    );
}

#[tokio::test]
async fn the_interpreters_time_is_not_the_environments() {
    let grants = Grants { code: Some("grant-interpreter".into()), ..Grants::default() };
    let own = Limits { cpu_ms: 20, ..limits() };
    let access = Access { limits: own, grants, code_limits: Limits { cpu_ms: 60_000, ..limits() } };
    let environment = common::SANDBOX.environment(&common::library(), "grant-code", access).unwrap();
    // Sixty million rounds take longer than 20 ms on any machine.
    assert_eq!(step(&mut open(&environment, 1).await, "work\nprint done").await, "|done");
}

#[tokio::test]
async fn sessions_are_few() {
    let mut episode = open(&granted(limits()), 1).await;
    let said =
        step(&mut episode, "session 3\nprint a\nsession 4\nprint b\nsession 0\nclose\nsession 4\nprint c")
            .await;
    assert_eq!(said, "ok|a|ok|crashed at most 4 sessions may be open|ok|ok|ok|c");
}

#[tokio::test]
async fn randomness_comes_from_the_call() {
    let environment = granted(limits());
    let mut draws = Vec::new();
    for seed in [1, 1, 2] {
        let mut episode = open(&environment, seed).await;
        draws.push(step(&mut episode, "random\nsession 1\nrandom").await);
    }
    assert_eq!(draws[0], draws[1]);
    assert_ne!(draws[0], draws[2]);
    let (first, second) = draws[0].split_once("|ok|").unwrap();
    assert_ne!(first, second, "two sessions differ");
}

#[test]
fn the_interpreter_is_told_as_it_was_loaded() {
    let file = common::plugins("plugins-test").join("grant-interpreter.wasm");
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copied.wasm");
    std::fs::copy(&file, &copy).unwrap();
    let grants = Grants { code: Some(copy.to_str().unwrap().to_owned()), ..Grants::default() };
    let environment =
        common::SANDBOX.environment(&common::library(), "grant-code", access(grants.clone())).unwrap();
    // What is found there later is another one.
    std::fs::copy(common::plugins("plugins-test").join("grant-model.wasm"), &copy).unwrap();
    let told = environment.interpreter().unwrap();
    assert_eq!(told.digest, molt_sandbox::inspect(&file).unwrap().digest);
    assert_eq!((told.name.as_str(), &told.path), ("copied", &copy));
    let reward =
        common::SANDBOX.reward(&common::library(), "exact-match", access(Grants::default())).unwrap();
    assert!(reward.interpreter().is_none());
}

#[test]
fn a_grant_that_cannot_be_given_is_found_at_the_start() {
    let load = |grants| {
        let loaded = common::SANDBOX.environment(&common::library(), "grant-code", access(grants));
        loaded.map(|_| ()).unwrap_err()
    };
    let error = load(Grants::default());
    assert!(error.to_string().contains("plugins.grant.grant-code.code = \"python\""), "{error}");
    let error = load(Grants { code: Some("grant-model".into()), ..Grants::default() });
    assert!(matches!(error, LoadError::WrongKind { .. }), "{error}");
    let error = load(Grants { code: Some("no-such-interpreter".into()), ..Grants::default() });
    assert!(matches!(error, LoadError::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn nobody_waits_for_a_session_with_another_in_hand() {
    // Room for two, one each: whoever waited for a second here would wait for the other for ever.
    let environment = granted(Limits { instances: 2, ..limits() });
    let (mut one, mut two) = (open(&environment, 1).await, open(&environment, 2).await);
    assert_eq!(step(&mut one, "remember one").await, "");
    assert_eq!(step(&mut two, "remember two").await, "");
    for (episode, held) in [(&mut one, "one"), (&mut two, "two")] {
        let said = step(episode, "session 1\nprint on\nsession 0\nrecall").await;
        assert!(said.contains("crashed") && said.contains("all sessions are taken"), "{said}");
        assert!(said.ends_with(held), "what it holds it keeps: {said}");
    }
    drop(two);
    let said = step(&mut one, "session 1\nprint on").await;
    assert!(said.ends_with("|on"), "there is room again: {said}");
}

#[tokio::test]
async fn waiting_for_others_sessions_is_not_told_as_slowness() {
    let grants = Grants { code: Some("grant-interpreter".into()), ..Grants::default() };
    let own = Limits { call_s: 1, ..limits() };
    let access = Access { limits: own, grants, code_limits: Limits { instances: 1, ..limits() } };
    let environment = common::SANDBOX.environment(&common::library(), "grant-code", access).unwrap();
    let (mut one, mut two) = (open(&environment, 1).await, open(&environment, 2).await);
    assert_eq!(step(&mut one, "remember one").await, "");
    let failure = two.step(&common::say("remember two")).await.unwrap_err();
    assert_eq!(failure.label(), "sandbox-full", "{failure}");
    assert!(failure.to_string().contains("sessions"), "{failure}");
}
