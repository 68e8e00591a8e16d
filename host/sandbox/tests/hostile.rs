//! Plugins that attack: every attack costs its own call a typed failure, and nothing else.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, rollout, sample, say, task};
use molt_sandbox::{Cause, EstimatorBatch, Failure, Limits, Reward, Transition, Verdict};
use std::sync::LazyLock;

fn hostile() -> Reward {
    static HOSTILE: LazyLock<Reward> =
        LazyLock::new(|| SANDBOX.reward(&library(), "hostile", limits()).unwrap());
    HOSTILE.clone()
}

async fn score(act: &str) -> Result<Verdict, Failure> {
    hostile().score(call(1), &sample(act, None)).await
}

async fn failure(act: &str) -> Failure {
    let failure = score(act).await.unwrap_err();
    let sentence = failure.to_string();
    assert!(sentence.starts_with("plugin `hostile` "), "{sentence}");
    assert!(sentence.contains(" in rollout 3.1"), "{sentence}");
    failure
}

async fn reward(act: &str) -> f64 {
    match score(act).await.unwrap() {
        Verdict::Scored { reward, .. } => reward,
        other => panic!("{act}: {other:?}"),
    }
}

#[tokio::test]
async fn a_loop_is_stopped_at_its_cpu_limit() {
    let failure = failure("loop").await;
    assert_eq!((failure.label(), &failure.cause), ("cpu-limit", &Cause::Cpu { limit_ms: 300 }));
    assert!(failure.to_string().contains("300 ms"));
}

#[tokio::test]
async fn memory_without_end_is_refused() {
    let failure = failure("alloc").await;
    assert_eq!((failure.label(), &failure.cause), ("memory-limit", &Cause::Memory { limit_mib: 32 }));
    assert!(failure.to_string().contains("32 MiB"));
}

#[tokio::test]
async fn a_panic_is_reported_with_its_message() {
    let failure = failure("trap").await;
    assert_eq!(failure.label(), "trap");
    assert!(failure.to_string().contains("this reward panics on purpose"), "{failure}");
}

#[tokio::test]
async fn an_exit_is_a_crash() {
    let failure = failure("exit").await;
    assert_eq!(failure.label(), "trap");
    assert!(failure.to_string().contains("exited"), "{failure}");
}

#[tokio::test]
async fn numbers_that_are_not_finite_are_refused() {
    assert_eq!(failure("nan").await.cause, Cause::NotFinite("the reward is NaN".into()));
    assert_eq!(failure("infinite-metric").await.cause, Cause::NotFinite("metric \"m\" is inf".into()));
}

#[tokio::test]
async fn metrics_are_few_and_have_short_plain_names() {
    for (act, told) in [
        ("many-metrics", "65 metrics"),
        ("long-metric", "more than 100 characters"),
        ("control-metric", "control character"),
    ] {
        let failure = failure(act).await;
        assert_eq!(failure.label(), "bad-return", "{act}: {failure}");
        assert!(failure.to_string().contains(told), "{act}: {failure}");
    }
    assert_eq!(reward("most-metrics").await, 1.0);
}

#[tokio::test]
async fn files_and_network_are_denied_by_name() {
    for (act, asked) in [
        ("file", "a file, \"etc/passwd\""),
        ("write", "a file, \"molt.txt\""),
        ("net", "the network"),
        ("resolve", "the network, \"localhost\""),
    ] {
        let failure = failure(act).await;
        assert_eq!(failure.label(), "denied", "{act}: {failure}");
        assert!(failure.to_string().contains(asked), "{act}: {failure}");
    }
}

#[tokio::test]
async fn endless_recursion_is_a_stack_overflow() {
    assert_eq!(failure("recurse").await.label(), "stack-overflow");
}

#[tokio::test]
async fn a_flood_of_output_is_bounded_and_its_end_is_shown() {
    let failure = failure("flood").await;
    assert_eq!(failure.label(), "trap");
    assert!(failure.log.contains("flooded") && failure.log.len() <= 1600, "{}", failure.log);
    assert_eq!(reward("flood-quietly").await, 1.0);
}

#[tokio::test]
async fn too_much_data_in_return_is_refused() {
    let failure = failure("big").await;
    assert_eq!((failure.label(), &failure.cause), ("output-limit", &Cause::Output { limit_kib: 1024 }));
}

#[tokio::test]
async fn time_is_virtual_and_sleep_takes_none() {
    let slept = reward("sleep").await;
    assert!((3600.0..3601.0).contains(&slept), "{slept}");
    assert_eq!(reward("sleep").await, slept);
    assert_eq!(reward("time").await, reward("time").await);
}

#[tokio::test]
async fn the_world_is_empty() {
    assert_eq!(reward("environment").await, 0.0);
    assert_eq!(reward("stdin").await, 0.0);
}

#[tokio::test]
async fn randomness_is_the_seed() {
    let plugin = hostile();
    let random = async |seed| plugin.score(call(seed), &sample("random", None)).await.unwrap();
    assert_eq!(random(1).await, random(1).await);
    assert_ne!(random(1).await, random(2).await);
}

#[tokio::test]
async fn every_call_has_a_fresh_instance() {
    let plugin = hostile();
    for _ in 0..5 {
        let verdict = plugin.score(call(1), &sample("count", None)).await.unwrap();
        assert!(matches!(verdict, Verdict::Scored { reward: 0.0, solved: false, .. }), "{verdict:?}");
    }
}

#[tokio::test]
async fn verdicts_come_through() {
    assert_eq!(score("invalid").await.unwrap(), Verdict::Invalid("cannot be scored".into()));
    assert_eq!(score("infra").await.unwrap(), Verdict::Infra("the grader is down".into()));
}

#[tokio::test]
async fn a_loop_leaves_its_thread_to_others() {
    // One thread, and a loop that may go on for a minute: unless it yields, the second call never begins.
    let patient = Limits { cpu_ms: 60_000, ..limits() };
    let looping = SANDBOX.reward(&library(), "hostile", patient).unwrap();
    let attacker = tokio::spawn(async move { looping.score(call(1), &sample("loop", None)).await });
    tokio::task::yield_now().await;
    hostile().score(call(2), &sample("count", None)).await.unwrap();
    assert!(!attacker.is_finished());
    // An abandoned call ends where it is.
    attacker.abort();
    assert!(attacker.await.unwrap_err().is_cancelled());
}

/// Plays one episode of an environment that does what `act` says, and tells how far it came.
async fn play(act: &str) -> (&'static str, Result<Transition, Failure>) {
    let plugin = SANDBOX.environment(&library(), "hostile-environment", limits()).unwrap();
    let mut episode = match plugin.open(call(1), &task(Some(act))).await {
        Ok(episode) => episode,
        Err(failure) => return ("constructor", Err(failure)),
    };
    match episode.reset().await {
        Ok(_) => ("step", episode.step(&say("on")).await),
        Err(failure) => ("reset", Err(failure)),
    }
}

#[tokio::test]
async fn every_phase_of_an_episode_is_guarded() {
    for (act, label, told) in [
        ("constructor: loop", "cpu-limit", "300 ms"),
        ("reset: trap", "trap", "this environment panics on purpose"),
        ("step: alloc", "memory-limit", "32 MiB"),
        ("step: nan", "not-finite", "the step's reward is NaN"),
        ("step: infinite metric", "not-finite", "metric \"m\" is inf"),
        ("step: file", "denied", "a file, \"etc/passwd\""),
    ] {
        let (phase, answer) = play(act).await;
        let failure = answer.unwrap_err();
        assert!(act.starts_with(phase), "{act}: failed in {phase}");
        assert_eq!((failure.label(), failure.rollout), (label, Some(rollout(1))), "{act}: {failure}");
        let sentence = failure.to_string();
        assert!(sentence.starts_with("plugin `hostile-environment` "), "{sentence}");
        assert!(sentence.contains(told) && sentence.contains(" in rollout 3.1"), "{sentence}");
    }
    let (_, answer) = play("behave").await;
    assert!(answer.unwrap().done);
}

#[tokio::test]
async fn an_estimate_is_guarded_and_names_no_rollout() {
    let plugin = SANDBOX.estimator(&library(), "hostile-estimator", limits()).unwrap();
    let estimate = async |gamma| {
        let batch = EstimatorBatch {
            rewards: vec![1.0, 0.5],
            groups: vec![0, 0],
            segment_rollouts: vec![0, 1],
            segment_offsets: vec![0, 2, 3],
            turns: vec![0; 3],
            turn_rewards: vec![1.0, 0.5],
            turn_offsets: vec![0, 1, 2],
            gamma,
            ..EstimatorBatch::default()
        };
        plugin.estimate(&batch).await
    };
    for (gamma, label, told) in [
        (1.0, "cpu-limit", "300 ms"),
        (2.0, "trap", "this estimator panics on purpose"),
        (3.0, "not-finite", "the advantages of rollout 0 is NaN"),
        (4.0, "bad-return", "the advantages has 3 numbers, expected 2"),
        (5.0, "infra", "there is nothing to estimate"),
    ] {
        let failure = estimate(gamma).await.unwrap_err();
        assert_eq!((failure.label(), failure.rollout), (label, None), "{failure}");
        let sentence = failure.to_string();
        assert!(sentence.starts_with("plugin `hostile-estimator` ") && sentence.contains(told), "{sentence}");
    }
    assert_eq!(estimate(0.0).await.unwrap().advantages, [1.0, 1.0, 0.5]);
}
