//! The way of an author who writes Rust, with the real binary: every kind from `new` to `run`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// `molt-plugin`, whose projects share what cargo builds for them, and for which the network is not needed:
/// a project has the versions that this repository has.
fn molt_plugin(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_molt-plugin"));
    command.args(args).current_dir(dir);
    command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("projects"));
    command.env("CARGO_NET_OFFLINE", "true");
    command.output().unwrap()
}

#[track_caller]
fn succeeds(args: &[&str], dir: &Path) -> String {
    let output = molt_plugin(args, dir);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// Exit code and both streams of a command that does not succeed.
#[track_caller]
fn fails(args: &[&str], dir: &Path) -> (i32, String) {
    let output = molt_plugin(args, dir);
    assert!(!output.status.success(), "{args:?} succeeds: {}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A project of this kind that was built, checked and tested.
fn project(kind: &str, name: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    let told = succeeds(&["new", name, "--kind", kind], dir.path());
    assert!(told.contains(&format!("molt-plugin build {name}")), "{told}");
    let built = succeeds(&["build", name], dir.path());
    assert!(built.starts_with(&format!("{name}/{name}.wasm")), "{built}");
    let tested = succeeds(&["test", name], dir.path());
    assert!(tested.contains("as expected") && !tested.contains("FAILED"), "{tested}");
    let checked = succeeds(&["check", name], dir.path());
    assert!(checked.contains("contract") && !checked.contains("FAILED"), "{checked}");
    assert!(!checked.contains("WARN"), "{checked}");
    let measured = succeeds(&["bench", name, "--rounds", "5"], dir.path());
    for expected in ["compiling ", "MiB per instance", "new instance", "INSTRUCTIONS"] {
        assert!(measured.contains(expected), "{measured}");
    }
    dir
}

#[test]
fn a_reward() {
    let dir = project("reward", "brevity");
    let inspected = succeeds(&["inspect", "brevity"], dir.path());
    for expected in ["name         brevity\n", "kind         reward\n", "version      0.1.0\n", "Closeness"] {
        assert!(inspected.contains(expected), "{inspected}");
    }
    let scored = succeeds(&["run", "brevity", "--label", "43", "--completion", "42"], dir.path());
    assert_eq!(scored, "reward 0.25, not solved, length 2\n");

    let again = fails(&["new", "brevity", "--kind", "reward"], dir.path());
    assert_eq!((again.0, again.1.contains("is there already")), (2, true), "{}", again.1);

    // What the plugin prints is shown, and what goes wrong in its code names the line.
    let source = dir.path().join("brevity/src/lib.rs");
    let good = fs::read_to_string(&source).unwrap();
    let line = "        let (answer, label) = (trim(&sample.completion), trim(label));\n";
    let bad = good.replace(
        line,
        &format!("{line}        assert!(answer.len() < 1000, \"too long\");\n        eprintln!(\"sees {{answer}}\");\n"),
    );
    assert_ne!(good, bad);
    let place = bad.lines().position(|line| line.contains("too long")).unwrap() + 1;
    fs::write(&source, bad).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    let output = molt_plugin(&["run", "brevity", "--label", "4", "--completion", "5"], dir.path());
    assert_eq!(text(&output.stdout), "reward 0, not solved, length 1\n");
    assert!(text(&output.stderr).contains("[printed] sees 5\n"), "{}", text(&output.stderr));
    let (code, found) = fails(&["check", "brevity"], dir.path());
    assert_eq!(code, 1);
    assert!(found.contains("FAILED  inputs") && found.contains("too long"), "{found}");
    assert!(found.contains(&format!("src/lib.rs:{place}")), "{found}");
    let (code, found) = fails(&["check", "brevity", "--json"], dir.path());
    let findings: serde_json::Value = serde_json::from_str(&found).unwrap();
    let inputs = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "inputs").unwrap();
    assert_eq!((code, &inputs["ok"]), (1, &serde_json::Value::Bool(false)));

    fs::write(&source, good.replace("0.5 * common", "0.75 * common")).unwrap();
    succeeds(&["build", "brevity"], dir.path());
    let (code, found) = fails(&["test", "brevity"], dir.path());
    assert_eq!(code, 1);
    assert!(
        found.contains("FAILED  half of the beginning\n        reward: expected 0.25, found 0.375\n"),
        "{found}"
    );

    fs::write(&source, "this is no Rust").unwrap();
    let (code, found) = fails(&["build", "brevity"], dir.path());
    assert_eq!(code, 1);
    assert!(found.contains("src/lib.rs:1") && found.contains("does not compile"), "{found}");
}

#[test]
fn check_finds_what_breaks_the_contract() {
    let dir = TempDir::new().unwrap();
    let changed = |kind: &str, from: &str, to: &str| {
        let source = dir.path().join(kind).join("src/lib.rs");
        if !source.is_file() {
            succeeds(&["new", kind, "--kind", kind], dir.path());
        }
        let good = fs::read_to_string(&source).unwrap();
        assert!(good.contains(from), "{good}");
        fs::write(&source, good.replace(from, to)).unwrap();
        succeeds(&["build", kind], dir.path());
        fs::write(&source, good).unwrap();
    };
    let checked = |args: &[&str]| {
        let (code, found) = fails(&[&["check"], args].concat(), dir.path());
        assert_eq!(code, 1, "{found}");
        found
    };

    // A file that nobody granted: nothing is known of determinism.
    let score = "        let solved = answer == label;\n";
    let label = "        let Some(label) = &sample.task.label else {\n";
    changed("reward", label, &format!("        let _ = std::fs::read(\"/etc/passwd\");\n{label}"));
    let found = checked(&["reward"]);
    assert!(found.contains("FAILED  inputs") && found.contains("plugins.grant.reward"), "{found}");
    assert!(found.contains("No call succeeded") && !found.contains("determinism"), "{found}");

    // Randomness that a run granted.
    let random = "{ use std::hash::{BuildHasher, RandomState}; RandomState::new().hash_one(1) % 1000 < 500 }";
    changed("reward", score, &format!("        let solved = (answer == label) ^ {random};\n"));
    fs::write(dir.path().join("run.toml"), "[plugins.grant.reward]\nreal_random = true\n").unwrap();
    let found = checked(&["reward", "--config", "run.toml"]);
    assert!(found.contains("ok      inputs") && found.contains("FAILED  determinism"), "{found}");

    // Two kinds of failure are two findings, each with its own help.
    let bad = "        assert!(answer.len() < 1000, \"too long\");\n        let solved = answer == label;\n";
    changed(
        "reward",
        score,
        &bad.replace("let solved", "if answer.ends_with(\"is 4\") { loop {} }\n        let solved"),
    );
    let found = checked(&["reward"]);
    assert_eq!(found.matches("FAILED  inputs").count(), 2, "{found}");
    assert!(found.contains("plugins.only.reward") && found.contains("a verdict is due"), "{found}");

    let advantage = "advantages[rollout] = (own - rest / others) as f32;";
    changed("estimator", advantage, "advantages[rollout] = rollout as f32;");
    assert!(checked(&["estimator"]).contains("FAILED  permutation"));
    changed("estimator", advantage, "advantages[rollout] = (own / (own - rest / others)) as f32;");
    let found = checked(&["estimator"]);
    assert!(found.contains("FAILED  finiteness") && found.contains("compute in f64"), "{found}");
    let (code, found) = fails(&["check", "estimator", "--cases", "estimator/cases.toml"], dir.path());
    assert!(code == 2 && found.contains("takes no cases"), "{found}");
}

#[test]
fn a_group_reward() {
    let dir = project("group-reward", "shared");
    let args =
        ["run", "shared", "--label", "4", "--completion", "4", "--completion", "4", "--completion", "5"];
    let scored = succeeds(&args, dir.path());
    assert_eq!(
        scored,
        "reward 0.5, solved, same 2\nreward 0.5, solved, same 2\nreward 0, not solved, same 1\n"
    );
}

#[test]
fn an_environment() {
    let dir = project("environment", "guess");
    fs::write(dir.path().join("turns.txt"), "50\n42\n").unwrap();
    let played = succeeds(&["run", "guess", "--seed", "41", "--script", "turns.txt"], dir.path());
    assert_eq!(
        played,
        "user: I think of a whole number from 1 to 100. What is it?\n\
         > 50\n[reward -0.05, guesses 1]\nuser: Lower.\n\
         > 42\n[reward 1, solved, guesses 2]\nThe episode is over, with reward 0.95.\n"
    );
}

#[test]
fn an_estimator() {
    let dir = project("estimator", "leave-one-out");
    let batch = r#"{"rewards": [1, 0, 0.5], "tokens": [2, 1, 0]}"#;
    fs::write(dir.path().join("batch.json"), batch).unwrap();
    let estimated = succeeds(&["run", "leave-one-out", "--batch", "batch.json"], dir.path());
    assert_eq!(
        estimated,
        "ROLLOUT  GROUP  REWARD  TOKENS  ADVANTAGE  RETURN\n\
         0        0      1       2       0.75       1\n\
         1        0      0       1       -0.75      0\n\
         2        0      0.5     0       -          -\n"
    );
    let inspected = succeeds(&["inspect", "leave-one-out"], dir.path());
    assert!(inspected.contains("needs group   yes\n"), "{inspected}");
}

#[test]
fn a_loss() {
    let dir = project("loss", "plain");
    let inspected = succeeds(&["inspect", "plain"], dir.path());
    assert!(inspected.contains("kind         loss\n"), "{inspected}");
    let batch = r#"{"logprobs": [-0.5, -1, -2], "sampled": [-0.5, -1, -2], "advantages": [1, 1, -0.5], "tokens": [2, 1]}"#;
    fs::write(dir.path().join("batch.json"), batch).unwrap();
    let computed = succeeds(&["run", "plain", "--batch", "batch.json"], dir.path());
    assert_eq!(
        computed,
        "TOKEN  SEGMENT  LOGPROB  SAMPLED  OLD   ADVANTAGE  LOSS  SLOPE\n\
         0      0        -0.5     -0.5     -0.5  1          0.5   -1\n\
         1      0        -1       -1       -1    1          1     -1\n\
         2      1        -2       -2       -2    -0.5       -1    0.5\n"
    );
    let source = dir.path().join("plain/src/lib.rs");
    let good = fs::read_to_string(&source).unwrap();
    let token = "(-advantage * logprob, -advantage)";
    assert!(good.contains(token), "{good}");
    let built = |bad: &str| {
        fs::write(&source, good.replace(token, bad)).unwrap();
        succeeds(&["build", "plain"], dir.path());
    };
    let checked = |bad: &str| {
        built(bad);
        let (code, found) = fails(&["check", "plain"], dir.path());
        assert_eq!(code, 1, "{found}");
        found
    };
    let found = checked("(-advantage * logprob, advantage / 0.0)");
    assert!(found.contains("FAILED  finiteness") && found.contains("the slopes of action token"), "{found}");
    let counted = "{ static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0); \
                   let n = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed); \
                   (-advantage * logprob + n as f32, -advantage) }";
    let found = checked(counted);
    assert!(found.contains("FAILED  permutation"), "{found}");
    let found = checked("(-advantage * logprob, advantage)");
    assert!(
        found.contains("FAILED  slopes") && found.contains("all of these have the opposite sign"),
        "{found}"
    );
    assert!(found.contains("token 0 has slope -0.4; by differences it is 0."), "{found}");
    let (code, found) = fails(&["test", "plain"], dir.path());
    assert_eq!(code, 1);
    assert!(found.contains("        slope of token 0: expected -1, found 1\n"), "{found}");
    // One of another size might be meant, and is told.
    built("(-advantage * logprob, -advantage / 2.0)");
    let found = succeeds(&["check", "plain"], dir.path());
    assert!(found.contains("WARN    slopes") && found.contains("as in CISPO"), "{found}");
}

#[test]
fn names_kinds_and_places_that_cannot_be_are_told() {
    let dir = TempDir::new().unwrap();
    for (args, told) in [
        (&["new", "Brevity", "--kind", "reward"][..], "small letters"),
        (&["new", "../x", "--kind", "reward"], "small letters"),
        (&["new", "self", "--kind", "reward"], "reserves"),
        (&["new", "a", "--kind", "rewards"], "environment, estimator, loss]"),
        (&["new", "a", "--kind", "interpreter"], "it has reward, group-reward, environment, estimator, loss"),
        (&["build"], "molt.toml"),
        (&["check", "nothing.wasm"], "cannot read plugin nothing.wasm"),
        (&["run", "nothing"], "no plugin called `nothing`"),
        (&["test", "nothing.wasm"], "cannot read plugin nothing.wasm"),
    ] {
        let (code, found) = fails(args, dir.path());
        assert_eq!(code, 2, "{args:?}: {found}");
        assert!(found.contains(told), "{args:?}: {found}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?} left something behind");
    }
}
