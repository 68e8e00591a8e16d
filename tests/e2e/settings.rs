//! Settings of sampling, which only the binary reads: each changes what it is for.

use molt_tests::{assert_ok, json, molt, numbers, path, run, short_run, text, tiny_model};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Every letter and digit of the tiny model's vocabulary: a turn that stops at any of them has few tokens.
fn characters() -> String {
    ('a'..='z').chain('0'..='9').map(String::from).collect::<Vec<_>>().join(",")
}

/// `eval.json` of an evaluation with these flags, and its samples without their log-probabilities.
fn evaluated(dir: &Path, name: &str, flags: &[&str]) -> (Value, String) {
    let (prompts, out) = (dir.join("held-out.jsonl"), dir.join(name));
    let common = ["eval", "--model.path", path(tiny_model()), "--eval.prompts", path(&prompts)];
    let more = ["--reward.name", "exact-match", "--eval.samples", "4", "--run.dir", path(&out)];
    assert_ok(&run(&[&common[..], &more, flags].concat()));
    let samples = fs::read_to_string(out.join("samples.md")).unwrap();
    let said = samples.lines().filter(|line| !line.contains("action tokens"));
    (json(&out.join("eval.json")), said.collect::<Vec<_>>().join("\n"))
}

#[test]
fn an_evaluation_samples_as_it_is_told() {
    let dir = TempDir::new().unwrap();
    let rows: String =
        (0..3).map(|n| format!("{{\"prompt\": \"sort {n}1\", \"answer\": \"1{n}\"}}\n")).collect();
    fs::write(dir.path().join("held-out.jsonl"), rows).unwrap();
    let of = |name: &str, flags: &[&str]| {
        let short: &[&str] =
            if flags.contains(&"--eval.max_new_tokens") { &[] } else { &["--eval.max_new_tokens", "8"] };
        evaluated(dir.path(), name, &[short, flags].concat())
    };
    let (report, sampled) = of("plain", &[]);
    assert_eq!((&report["prompts"], &report["finished"]), (&3.into(), &12.into()));
    let tokens = |report: &Value| report["mean_tokens"].as_f64().unwrap();

    let (greedy, likely) = of("greedy", &["--eval.temperature", "0"]);
    assert!(likely != sampled, "the temperature does nothing");
    // Of a random model, so little mass holds the most likely token alone.
    let (_, nucleus) = of("nucleus", &["--eval.top_p", "0.001"]);
    assert_eq!(nucleus, likely);

    let (short, _) = of("short", &["--eval.max_new_tokens", "3", "--eval.temperature", "0"]);
    assert!(tokens(&short) <= 3.0 && tokens(&short) < tokens(&greedy), "{short}");
    let (prompts, out) = (dir.path().join("held-out.jsonl"), dir.path().join("tight"));
    let common =
        ["eval", "--model.path", path(tiny_model()), "--eval.prompts", path(&prompts), "--reward.name"];
    let output =
        run(&[&common[..], &["exact-match", "--eval.max_context", "5", "--run.dir", path(&out)]].concat());
    assert_eq!(output.status.code(), Some(1), "where nothing finishes nothing is measured");
    assert!(text(&output).contains("for prompts that are too long raise max_context"), "{}", text(&output));
    let tight = json(&out.join("eval.json"));
    assert_eq!(tight["dropped"]["prompt-too-long"], 3, "{tight}");
    let (stopped, _) = of("stopped", &["--eval.stop", &characters()]);
    assert!(tokens(&stopped) < tokens(&report) - 1.0, "{stopped}");
}

#[test]
fn rollouts_end_where_they_are_told() {
    let dir = TempDir::new().unwrap();
    let rows = "{\"prompt\": \"sort 21\", \"answer\": \"12\"}\n".repeat(4);
    let data = dir.path().join("rows.jsonl");
    fs::write(&data, rows).unwrap();
    let lengths = |name: &str, flags: &[&str]| -> Vec<f64> {
        let out = dir.path().join(name);
        let args = ["--data.prompts", path(&data), "--train.sync", "true", "--rollout.max_new_tokens", "20"];
        assert_ok(&molt().args(short_run(&out)).args(args).args(flags).output().unwrap());
        numbers(&out, &["rollout/length_mean", "rollout/length_max", "rollout/truncated_rate"])
    };
    let plain = lengths("plain", &[]);
    // `<|im_start|>user\nsort 21<|im_end|>\n<|im_start|>assistant\n` is 15 tokens: there is room for 3.
    let tight = lengths("tight", &["--rollout.max_context", "18"]);
    assert!(tight[1] == 3.0 && plain[1] > 3.0, "{tight:?} {plain:?}");
    let stopped = lengths("stopped", &["--rollout.stop", &characters()]);
    assert!(stopped[0] < plain[0] - 1.0 && stopped[2] < plain[2], "{stopped:?} {plain:?}");
}

/// What a training run wrote down of itself is the file of an evaluation: its directory stays its own, and limits of plugins that
/// only training has are said to be of no use.
#[test]
fn an_evaluation_takes_the_settings_of_a_training_run() {
    let dir = TempDir::new().unwrap();
    let (trained, prompts) = (dir.path().join("train"), dir.path().join("held-out.jsonl"));
    fs::write(&prompts, "{\"prompt\": \"sort 21\", \"answer\": \"12\"}\n").unwrap();
    let more = ["--train.max_steps", "1", "--plugins.only.grpo.cpu_ms", "1500"];
    assert_ok(&molt().args(short_run(&trained)).args(more).output().unwrap());
    let before = fs::read(trained.join("summary.json")).unwrap();
    let settings = trained.join("settings.toml");
    let eval = ["eval", "--config", path(&settings), "--eval.prompts", path(&prompts)];
    let output = molt().args(eval).args(["--eval.max_new_tokens", "8"]).current_dir(dir.path()).output();
    let output = output.unwrap();
    assert_ok(&output);
    let told = text(&output);
    assert!(told.contains("warning: plugins.only.grpo limits a plugin that this run does not use"), "{told}");
    let runs: Vec<_> = fs::read_dir(dir.path().join("runs")).unwrap().collect();
    assert_eq!(runs.len(), 1, "in a directory of its own");
    assert_eq!(fs::read(trained.join("summary.json")).unwrap(), before);
}
