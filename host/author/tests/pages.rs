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

/// The text of a page of the repository.
fn read(page: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap()
}

/// Says what `molt-plugin` says in `dir`, where it has to succeed.
#[track_caller]
fn succeeds(args: &[&str], dir: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_molt-plugin"))
        .args(args)
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("projects"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

/// Follows `page` with a new project whose source is `source`.
fn follow(page: &str, language: &str, tag: &str, source: &str) {
    let dir = tempfile::tempdir().unwrap();
    let page = read(page);
    succeeds(&["new", "brevity", "--kind", "reward", "--lang", language], dir.path());
    let project = dir.path().join("brevity");
    fs::write(project.join(source), block(&page, tag, "score")).unwrap();
    fs::write(project.join("cases.toml"), block(&page, "toml", "[[case]]")).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    let said = succeeds(&["test", "brevity"], dir.path());
    assert!(said.contains("as expected"), "{said}");
}

/// The README shows the heart of a new estimator: in its place it does what the cases of the project say.
#[test]
fn readme_estimator() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(&["new", "leave-one-out", "--kind", "estimator"], dir.path());
    let source = dir.path().join("leave-one-out/src/lib.rs");
    let template = fs::read_to_string(&source).unwrap();
    let begin = template.find("impl Estimator for").unwrap();
    let end = template.find("molt_plugin::export_estimator!").unwrap();
    let page = read("README.md");
    let heart = block(&page, "rust", "impl Estimator for");
    fs::write(&source, [&template[..begin], heart, &template[end..]].concat()).unwrap();
    succeeds(&["build", "leave-one-out"], dir.path());
    let said = succeeds(&["test", "leave-one-out"], dir.path());
    assert!(said.contains("as expected") && !said.contains("FAILED"), "{said}");
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
