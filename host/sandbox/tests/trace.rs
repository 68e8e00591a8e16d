//! Where in a plugin a failure happened.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, call, library, limits, plugins, sample};
use molt_sandbox::{Failure, Library};

#[tokio::test]
async fn a_panic_is_told_with_the_source_lines_of_the_plugin() {
    let digest = SANDBOX.reward(&library(), "traced", limits()).unwrap().info().digest.clone();
    let traced = async |digest: &str| {
        let sandbox = SANDBOX.clone().with_source_lines_of(digest);
        let plugin = sandbox.reward(&library(), "traced", limits()).unwrap();
        plugin.score(call(1), &sample("12", None)).await.unwrap_err()
    };
    let of_another = traced(&format!("sha256:{}", "0".repeat(64))).await;
    assert!(of_another.trace.iter().all(|frame| !frame.contains(" at ")), "{:?}", of_another.trace);
    let failure = traced(&digest).await;
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

#[tokio::test]
async fn what_a_plugin_says_of_itself_costs_the_host_nothing() {
    // Functions inlined into each other without end: to read them takes a deep stack.
    let abbreviations = [
        &[1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0][..], // compile_unit with children: low_pc addr, high_pc data4
        &[2, 0x2e, 1, 0x11, 1, 0x12, 6, 0, 0],     // subprogram, the same
        &[3, 0x1d, 1, 0, 0, 0],                    // inlined_subroutine with children
    ]
    .concat();
    let mut info = vec![4, 0, 0, 0, 0, 0, 4];
    for entry in [1, 2] {
        info.push(entry);
        info.extend([1_u32, 0x7fff_0000].map(u32::to_le_bytes).concat());
    }
    info.extend(vec![3; 2_000_000]);
    let info = [(info.len() as u32).to_le_bytes().to_vec(), info].concat();
    let failure = crashed(&[(".debug_abbrev", abbreviations), (".debug_info", info)]).await;
    assert_eq!(failure.label(), "trap", "{failure}");

    // A name that means twenty times twenty times … a text.
    let mut name = "_Z1f1a".to_owned();
    for level in ["S_", "S0_", "S1_", "S2_", "S3_", "S4_"] {
        name += &format!("F{}E", level.repeat(20));
    }
    let one = |index: usize| [leb(index), leb(name.len()), name.clone().into_bytes()].concat();
    let names = [leb(1000), (0..1000).flat_map(one).collect()].concat();
    let failure = crashed(&[("name", [vec![1], leb(names.len()), names].concat())]).await;
    assert_eq!(failure.label(), "trap", "{failure}");
    assert!(failure.trace.iter().all(|frame| frame.len() < 1000), "{:?}", failure.trace);
}

/// How a plugin crashes whose code is followed by these custom sections.
async fn crashed(sections: &[(&str, Vec<u8>)]) -> Failure {
    let bytes = std::fs::read(plugins("plugins-test").join("hostile.wasm")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talkative.wasm");
    std::fs::write(&path, with_sections(&bytes, sections)).unwrap();
    let plugin = SANDBOX.reward(&Library::new(&[]), path.to_str().unwrap(), limits()).unwrap();
    plugin.score(call(1), &sample("trap", None)).await.unwrap_err()
}

/// A component with custom sections at the end of its largest core module.
fn with_sections(component: &[u8], sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = &component[8..];
    while let Some((&id, after)) = rest.split_first() {
        let digits = 1 + after.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let size = after[..digits].iter().rev().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f));
        let (body, next) = after[digits..].split_at(size);
        all.push((id, body.to_vec()));
        rest = next;
    }
    let (_, module) = all.iter_mut().filter(|(id, _)| *id == 1).max_by_key(|(_, body)| body.len()).unwrap();
    for (name, data) in sections {
        let body = [leb(name.len()), name.as_bytes().to_vec(), data.clone()].concat();
        module.extend([vec![0], leb(body.len()), body].concat());
    }
    let sections = all.into_iter().flat_map(|(id, body)| [vec![id], leb(body.len()), body].concat());
    component[..8].iter().copied().chain(sections).collect()
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}
