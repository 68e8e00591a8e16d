//! Every limit through the boundary, with plugins that need more, and at its exact edge where it has one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, rollout, sample, say, task};
use molt_sandbox::{Access, Cause, Failure, Grants, Limits, Reward, Verdict};
use std::time::Duration;

fn hostile(access: impl Into<Access>) -> Reward {
    SANDBOX.reward(&library(), "hostile", access).unwrap()
}

async fn score(limits: Limits, act: &str) -> Result<Verdict, Failure> {
    hostile(limits).score(call(1), &sample(act, None)).await
}

#[tokio::test]
async fn fuel_ends_a_call_at_the_same_instruction_everywhere() {
    let fuel = |fuel| Limits { fuel: Some(fuel), cpu_ms: 60_000, ..limits() };
    assert!(score(fuel(1 << 40), "work").await.is_ok());
    let failure = score(fuel(100_000), "loop").await.unwrap_err();
    assert_eq!(failure.cause, Cause::Fuel { limit: 100_000 });
    assert_eq!((failure.label(), failure.rollout), ("fuel-limit", Some(rollout(1))));
    assert!(failure.to_string().contains("100000"), "{failure}");
    // The least fuel that is enough is a property of the call, not of the run.
    let exact = async |limit| {
        let plugin = SANDBOX.reward(&library(), "exact-match", fuel(limit)).unwrap();
        plugin.score(call(1), &sample("hello", Some("hello"))).await
    };
    let (mut low, mut high) = (0, 1 << 20);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match exact(middle).await {
            Ok(_) => high = middle,
            Err(_) => low = middle,
        }
    }
    for _ in 0..3 {
        assert!(exact(high).await.is_ok());
        assert_eq!(exact(low).await.unwrap_err().cause, Cause::Fuel { limit: low });
    }
}

#[tokio::test]
async fn fuel_is_that_of_one_call_and_not_of_the_episode() {
    let enough = Limits { fuel: Some(1_000_000), ..limits() };
    let plugin = SANDBOX.environment(&library(), "guess-number", enough).unwrap();
    let mut episode = plugin.open(call(1), &task(Some("10"))).await.unwrap();
    episode.reset().await.unwrap();
    for _ in 0..5 {
        assert!(!episode.step(&say("50")).await.unwrap().done);
    }
}

#[tokio::test]
async fn a_deeper_stack_is_a_setting() {
    // The stack that Rust keeps in its own memory is 1 MiB whatever the limit; a small one of the engine ends
    // the recursion earlier.
    let failure = score(Limits { stack_kib: 16, ..limits() }, "recurse").await.unwrap_err();
    assert_eq!(failure.label(), "stack-overflow", "{failure}");
    assert!(score(Limits { stack_kib: 4096, ..limits() }, "work").await.is_ok());
}

#[tokio::test]
async fn tables_are_limited_as_set() {
    let failure = score(Limits { table_elements: 3, ..limits() }, "hello").await.unwrap_err();
    assert_eq!((failure.label(), &failure.cause), ("memory-limit", &Cause::Tables { limit: 3 }));
    assert!(score(Limits { table_elements: 1_000_000, ..limits() }, "hello").await.is_ok());
}

#[tokio::test]
async fn a_call_is_limited_in_time_while_it_works() {
    let slow = Limits { call_s: 1, cpu_ms: 60_000, ..limits() };
    let failure = score(slow, "loop").await.unwrap_err();
    assert_eq!((failure.label(), &failure.cause), ("time-limit", &Cause::Time { limit_s: 1 }));
    assert!(failure.to_string().contains("took longer than its limit of 1 s in rollout 3.1"), "{failure}");
}

#[tokio::test]
async fn a_call_is_limited_in_time_while_it_waits() {
    let grants = Grants { real_clock: true, ..Grants::default() };
    let access = Access { limits: Limits { call_s: 1, ..limits() }, grants, ..Access::default() };
    let failure = hostile(access).score(call(1), &sample("sleep 3600", None)).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Time { limit_s: 1 });
}

#[tokio::test]
async fn calls_of_the_host_are_counted() {
    let few = |host_calls| Limits { host_calls, ..limits() };
    // A thousand writes, each some calls.
    let failure = score(few(500), "flood quietly").await.unwrap_err();
    assert_eq!((failure.label(), &failure.cause), ("host-calls-limit", &Cause::HostCalls { limit: 500 }));
    assert!(score(few(100_000), "flood quietly").await.is_ok());
    assert!(score(few(0), "hello").await.is_ok());
}

#[tokio::test]
async fn calls_of_the_host_are_those_of_one_call() {
    let plugin =
        SANDBOX.environment(&library(), "guess-number", Limits { host_calls: 8, ..limits() }).unwrap();
    let mut episode = plugin.open(call(1), &task(Some("10"))).await.unwrap();
    episode.reset().await.unwrap();
    for _ in 0..20 {
        episode.step(&say("50")).await.unwrap();
    }
}

#[tokio::test]
async fn more_instances_than_are_allowed_wait() {
    let one = Limits { instances: 1, ..limits() };
    let plugin = SANDBOX.environment(&library(), "single-turn", one).unwrap();
    let first = plugin.open(call(1), &task(None)).await.unwrap();
    let second = task(None);
    let waiting = plugin.open(call(2), &second);
    tokio::pin!(waiting);
    let soon = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
    assert!(soon.is_err(), "two instances are alive");
    // Another plugin does not wait for this one.
    let other = SANDBOX.environment(&library(), "single-turn", one).unwrap();
    drop(other.open(call(3), &task(None)).await.unwrap());
    drop(first);
    assert!(waiting.await.is_ok());
}

#[tokio::test]
async fn a_sample_that_does_not_fit_into_the_memory_costs_only_its_call() {
    let huge = sample(&"x".repeat(64 << 20), None);
    // Copying so much may take longer than the other tests allow.
    let failure = hostile(Limits { cpu_ms: 10_000, ..limits() }).score(call(1), &huge).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Memory { limit_mib: 32 });
}
