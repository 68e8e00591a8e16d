//! The way of an author who writes C or Go, with the real binary: every kind from `new` to `check`, what a mistake
//! says, and that Go's runtime never asks for the time when it may not.

#![allow(clippy::unwrap_used, reason = "tests")]

use molt_core::chat::Task;
use molt_sandbox::{Action, Call, Library, Limits, Sandbox};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What the command printed, to either stream, and whether it succeeded.
fn molt_plugin(args: &[&str], dir: &Path) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_molt-plugin")).args(args).current_dir(dir).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[track_caller]
fn succeeds(args: &[&str], dir: &Path) -> String {
    let (success, printed) = molt_plugin(args, dir);
    assert!(success, "{args:?}: {printed}");
    printed
}

#[track_caller]
fn fails(args: &[&str], dir: &Path) -> String {
    let (success, printed) = molt_plugin(args, dir);
    assert!(!success, "{args:?} succeeds: {printed}");
    printed
}

/// The project `p` of a new directory.
fn new(lang: &str, kind: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    succeeds(&["new", "p", "--lang", lang, "--kind", kind], dir.path());
    dir
}

/// Changes the source, which must have `from`.
fn edit(source: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(source).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(source, text.replace(from, to)).unwrap();
}

#[test]
fn every_kind_keeps_the_contract() {
    for lang in ["c", "go"] {
        for kind in ["reward", "group-reward", "environment", "estimator"] {
            let dir = new(lang, kind);
            succeeds(&["build", "p"], dir.path());
            let tested = succeeds(&["test", "p"], dir.path());
            assert!(tested.contains("as expected"), "{lang} {kind}: {tested}");
            let checked = succeeds(&["check", "p"], dir.path());
            assert!(checked.contains("determinism"), "{lang} {kind}: {checked}");
            if lang == "c" {
                assert!(checked.contains("imports nothing"), "{kind}: {checked}");
            }
        }
    }
}

#[test]
fn a_component_in_c_is_the_same_wherever_it_is_built() {
    let build = || {
        let dir = new("c", "reward");
        succeeds(&["build", "p"], dir.path());
        fs::read(dir.path().join("p/p.wasm")).unwrap()
    };
    let component = build();
    assert!(component == build());
    assert!(component.len() < 50_000, "{}", component.len()); // no debug information of the C library
}

#[test]
fn mistakes_name_their_line() {
    let run = ["run", "p", "--label", "42", "--completion", "42"];
    let dir = new("c", "reward");
    let source = dir.path().join("p/reward.c");
    edit(
        &source,
        "  size_t length = characters(answer)",
        "  if (answer.len == 2) __builtin_trap();\n  size_t length = characters(answer)",
    );
    let line =
        fs::read_to_string(&source).unwrap().lines().position(|line| line.contains("trap")).unwrap() + 1;
    succeeds(&["build", "p"], dir.path());
    let told = fails(&run, dir.path());
    assert!(told.contains(&format!("in score at ./reward.c:{line}")), "{told}");
    // Where it lies does not matter: a file that was not built here is not asked where its lines are.
    let component = dir.path().join("p/p.wasm");
    let another = [fs::read(&component).unwrap(), vec![0, 2, 1, b'x']].concat(); // a custom section x
    fs::write(&component, another).unwrap();
    let told = fails(&run, dir.path());
    assert!(told.contains("in exports_reward_score") && !told.contains("reward.c"), "{told}");
    edit(&source, "if (answer.len == 2) __builtin_trap();", "assert(answer.len != 2);");
    edit(&source, "#include \"plugin.h\"\n", "#include \"plugin.h\"\n#include <assert.h>\n");
    let line = line + 1;
    // Nor does a module of the project stand in for one of the build's.
    fs::create_dir(dir.path().join("p/ziglang")).unwrap();
    fs::write(dir.path().join("p/ziglang/__main__.py"), "raise SystemExit('evil')\n").unwrap();
    succeeds(&["build", "p"], dir.path());
    let told = fails(&run, dir.path());
    assert!(told.contains(&format!("Assertion failed: answer.len != 2 (reward.c: score: {line})")), "{told}");
    let good = fs::read(&component).unwrap();
    edit(&source, "assert(answer.len != 2)", "nothing(");
    let told = fails(&["build", "p"], dir.path());
    assert!(told.contains(&format!("reward.c:{line}")) && told.contains("does not compile"), "{told}");
    assert!(fs::read(&component).unwrap() == good, "what was built before stays");

    let dir = new("go", "reward");
    let source = dir.path().join("p/reward.go");
    edit(&source, "\tcommon := 0\n", "\tcommon := 0\n\t_ = answer[len(answer)+len(expected)]\n");
    let line =
        fs::read_to_string(&source).unwrap().lines().position(|line| line.contains("_ = answer")).unwrap()
            + 1;
    succeeds(&["build", "p"], dir.path());
    let told = fails(&run, dir.path());
    assert!(told.contains(&format!("main.score (reward.go:{line})")), "{told}");
    assert!(told.contains("index out of range [4] with length 2"), "{told}");
    edit(&source, "_ = answer", "answer :=");
    let told = fails(&["build", "p"], dir.path());
    assert!(told.contains(&format!("reward.go:{line}")) && told.contains("does not compile"), "{told}");
}

/// Writes a wheel of the compiler's name and version.
const FORGED: &str = r#"
import zipfile
with zipfile.ZipFile("wheels/ziglang-0.17.1-py3-none-any.whl", "w") as wheel:
    info = "ziglang-0.17.1.dist-info"
    wheel.writestr("ziglang/__main__.py", "print('evil')")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ziglang\nVersion: 0.17.1\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
"#;

#[test]
fn a_compiler_that_is_not_the_pinned_one_is_not_installed() {
    let dir = new("c", "reward");
    fs::create_dir(dir.path().join("wheels")).unwrap();
    let made = Command::new("python3").args(["-c", FORGED]).current_dir(dir.path()).status().unwrap();
    assert!(made.success());
    let output = Command::new(env!("CARGO_BIN_EXE_molt-plugin"))
        .args(["build", "p"])
        .current_dir(dir.path())
        .env("XDG_CACHE_HOME", dir.path())
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", dir.path().join("wheels"))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("DO NOT MATCH THE HASHES"), "{told}");
    assert!(!dir.path().join("molt/tools/ziglang-0.17.1").exists());
}

/// Go collects its garbage while the host hands over text, and its scheduler reads the clock. Without the guard the
/// first collection ends the episode.
#[tokio::test]
async fn go_lives_through_its_garbage_collections() {
    let dir = new("go", "environment");
    let source = dir.path().join("p/environment.go");
    edit(&source, "case e.guesses >= mostGuesses:", "case e.guesses >= 1000*mostGuesses:");
    edit(
        &source,
        "\te.guesses++\n",
        "\te.guesses++\n\tfor i := range 100 {\n\t\tgarbage = action.Text[i:] + \"!\"\n\t}\n\tfmt.Fprintln(io.Discard, time.Now())\n",
    );
    edit(&source, "import (\n", "import (\n\t\"fmt\"\n\t\"io\"\n\t\"time\"\n");
    edit(&source, "const mostGuesses", "var garbage string\n\nconst mostGuesses");
    succeeds(&["build", "p"], dir.path());

    let sandbox = Sandbox::new(None).unwrap();
    let component = dir.path().join("p/p.wasm");
    let limits = Limits { memory_mib: 16, ..Limits::default() };
    let environment = sandbox.environment(&Library::new(&[]), component.to_str().unwrap(), limits).unwrap();
    let task = Task { id: "1".into(), messages: vec![], label: None, fields: vec![] };
    for seed in 0..3 {
        let mut episode = environment.open(Call { rollout: None, seed }, &task).await.unwrap();
        episode.reset().await.unwrap();
        for step in 0..1000 {
            let action = Action { text: "x".repeat(10_000 + 7 * step), tool_calls: vec![], truncated: false };
            let transition = episode.step(&action).await.unwrap();
            assert_eq!(transition.messages[0].content, "Say a whole number.", "step {step}");
        }
    }
}
