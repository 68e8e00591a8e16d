//! Components written by hand, for what no compiler would write. Each does its work when it is instantiated.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::SANDBOX;
use molt_sandbox::{Access, Failure, Grants, Library, Limits, LoadError};

/// A reward whose core module, given as the text of its functions, may call `imports`.
fn reward(types: &str, imports: &[(&str, &str)], functions: &str) -> Vec<u8> {
    let given: Vec<String> =
        imports.iter().map(|(name, _)| format!("(export \"{name}\" (func ${name}))")).collect();
    let taken: Vec<String> =
        imports.iter().map(|(name, ty)| format!("(import \"\" \"{name}\" (func ${name} {ty}))")).collect();
    let text = format!(
        r#"(component {types}
             (core module $m {} {functions} (func (export "score")))
             (core instance $i (instantiate $m (with "" (instance {}))))
             (func $score (canon lift (core func $i "score")))
             (instance $reward (export "score" (func $score)))
             (export "molt:plugin/reward@0.2.0" (instance $reward)))"#,
        taken.join(" "),
        given.join(" ")
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// What comes of making an instance of it.
async fn instantiate(component: &[u8], grants: Grants) -> Result<Result<(), Failure>, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("by-hand.wasm");
    std::fs::write(&path, component).unwrap();
    let limits = Limits { cpu_ms: 20_000, ..Limits::default() };
    let access = Access { limits, grants, code_limits: limits };
    let reward = SANDBOX.reward(&Library::new(&[]), path.to_str().unwrap(), access)?;
    Ok(reward.instantiate().await)
}

/// Takes and drops twice as many timers as an instance may hold handles. `first` says what a pollable is.
fn timers(first: &str, then: &str) -> Vec<u8> {
    let types = format!(
        r#"(import "{first}" (instance $first (export "pollable" (type (sub resource)))))
           (alias export $first "pollable" (type $pollable))
           (import "{then}" (instance
             (alias outer 1 $pollable (type $outer)) (export "pollable" (type (eq $outer)))))
           (import "wasi:clocks/monotonic-clock@0.2.6" (instance $clock
             (alias outer 1 $pollable (type $outer)) (export "pollable" (type $p (eq $outer)))
             (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
           (core func $timer (canon lower (func $clock "subscribe-duration")))
           (core func $drop (canon resource.drop $pollable))"#
    );
    reward(
        &types,
        &[("timer", "(param i64) (result i32)"), ("drop", "(param i32)")],
        "(func $all (local $left i32)
           (local.set $left (i32.const 20000))
           (loop $on
             (call $drop (call $timer (i64.const -1)))
             (br_if $on (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
         (start $all)",
    )
}

#[tokio::test]
async fn what_a_dropped_handle_stood_for_is_dropped_too() {
    let (poll, refused) = ("wasi:io/poll@0.2.6", ["wasi:sockets/x@0.2.0", "wasi:filesystem/x@0.2.0"]);
    for other in refused {
        let honest = instantiate(&timers(poll, other), Grants::default()).await.unwrap();
        assert!(honest.is_ok(), "{honest:?}");
        // Whoever defines a resource says what dropping it does; a refused interface would do nothing.
        let refused = instantiate(&timers(other, poll), Grants::default()).await.unwrap_err().to_string();
        assert!(refused.contains("resource implementation is missing"), "{refused}");
    }
}

/// Holds as many empty `fields` of HTTP.
fn fields(count: u32) -> Vec<u8> {
    let types = r#"(import "wasi:http/types@0.2.6" (instance $http
             (export "fields" (type $f (sub resource)))
             (export "[constructor]fields" (func (result (own $f))))))
           (core func $new (canon lower (func $http "[constructor]fields")))"#;
    let all = format!(
        "(func $all (local $left i32)
           (local.set $left (i32.const {count}))
           (loop $on
             (drop (call $new))
             (br_if $on (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
         (start $all)"
    );
    reward(types, &[("new", "(result i32)")], &all)
}

#[tokio::test]
async fn headers_and_bodies_that_the_host_keeps_are_few() {
    let grants = Grants { http: vec!["GET http://127.0.0.1:1".into()], ..Grants::default() };
    assert!(instantiate(&fields(1000), grants.clone()).await.unwrap().is_ok());
    let failure = instantiate(&fields(1001), grants).await.unwrap().unwrap_err();
    assert_eq!(failure.label(), "trap", "{failure}");
    assert!(failure.to_string().contains("handle"), "{failure}");
}
