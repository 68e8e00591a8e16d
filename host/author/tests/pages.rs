//! The pages of the SDKs: the code and the cases that each shows are a project that builds and passes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The first block of `language` in a page that has `text`.
fn block<'p>(page: &'p str, language: &str, text: &str) -> &'p str {
    let begin = format!("```{language}\n");
    let blocks = page.split(&begin).skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).find(|block| block.contains(text)).unwrap()
}

/// Follows `page` with a new project whose source is `source`.
fn follow(page: &str, language: &str, tag: &str, source: &str) {
    let dir = tempfile::tempdir().unwrap();
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_molt-plugin"))
            .args(args)
            .current_dir(dir.path())
            .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("projects"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{language} {args:?}: {said}");
        said
    };
    run(&["new", "brevity", "--kind", "reward", "--lang", language]);
    let project = dir.path().join("brevity");
    fs::write(project.join(source), block(&page, tag, "score")).unwrap();
    fs::write(project.join("cases.toml"), block(&page, "toml", "[[case]]")).unwrap();
    run(&["build", "brevity"]);
    let said = run(&["test", "brevity"]);
    assert!(said.contains("as expected"), "{said}");
}

#[test]
fn readme() {
    follow("README.md", "rust", "rust", "src/lib.rs");
}

#[test]
fn rust() {
    follow("sdk/rust/README.md", "rust", "rust", "src/lib.rs");
}

#[test]
fn python() {
    follow("sdk/python/README.md", "python", "python", "reward.py");
}

#[test]
fn typescript() {
    follow("sdk/js/README.md", "ts", "ts", "reward.ts");
}

#[test]
fn c() {
    follow("sdk/c/README.md", "c", "c", "reward.c");
}

#[test]
fn go() {
    follow("sdk/go/README.md", "go", "go", "reward.go");
}
