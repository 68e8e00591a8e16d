//! Where in a plugin a failure happened.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, sample};

#[tokio::test]
async fn a_panic_is_told_with_the_source_lines_of_the_plugin() {
    let plugin = SANDBOX.reward(&library(), "traced", limits()).unwrap();
    let failure = plugin.score(call(1), &sample("12", None)).await.unwrap_err();
    let source = include_str!("../fixtures/traced/src/lib.rs");
    let line = 1 + source.lines().position(|line| line.contains("the line that the test expects")).unwrap();
    let innermost = &failure.trace[0];
    assert!(innermost.starts_with("inner at "), "{:?}", failure.trace);
    assert!(innermost.ends_with(&format!("src/lib.rs:{line}")), "{:?}", failure.trace);
    assert!(failure.trace[1].starts_with("outer at "), "{:?}", failure.trace);
    // Neither the library's frames within nor generated code without.
    assert_eq!(failure.trace.len(), 3, "{:?}", failure.trace);
    let told = failure.with_trace();
    assert!(told.contains(&format!("\n  in {innermost}\n")), "{told}");
    assert_eq!(told.lines().next().unwrap(), failure.to_string());
}

#[tokio::test]
async fn without_debug_information_functions_are_told_by_name() {
    let plugin = SANDBOX.reward(&library(), "hostile", limits()).unwrap();
    let failure = plugin.score(call(1), &sample("trap", None)).await.unwrap_err();
    assert!(failure.trace.iter().any(|frame| frame.contains("hostile")), "{:?}", failure.trace);
    assert!(failure.trace.iter().all(|frame| !frame.contains(" at ")), "{:?}", failure.trace);
    assert!(!failure.to_string().contains('\n'));
}

#[tokio::test]
async fn a_failure_that_is_found_afterwards_has_no_trace() {
    let plugin = SANDBOX.reward(&library(), "hostile", limits()).unwrap();
    let failure = plugin.score(call(1), &sample("nan", None)).await.unwrap_err();
    assert_eq!(failure.with_trace(), failure.to_string());
}
