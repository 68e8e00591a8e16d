//! Whole runs: SFT, RL in both modes, evaluation, and what they leave behind.

use molt_tests::{assert_ok, json, metrics, molt, path, run, short_run, text, tiny_model};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const GAP: f64 = 1e-4;

fn check_run(run: &Path, steps: u64) {
    let summary = json(&run.join("summary.json"));
    assert_eq!(summary["steps"], steps);
    assert_eq!(json(&run.join("status.json"))["state"], "finished");
    assert!(summary["logprob_gap_max"].as_f64().unwrap() < GAP, "{summary}");
    let lines = metrics(run);
    assert_eq!(lines.len() as u64, steps);
    for line in &lines {
        for name in ["train/loss", "train/grad_norm", "rollout/reward_mean", "rollout/staleness_max"] {
            assert!(line[name].as_f64().is_some_and(f64::is_finite), "{name} in {line}");
        }
    }
    for file in
        ["settings.toml", "components.json", "run.log", "model/config.json", "model/model.safetensors"]
    {
        assert!(run.join(file).exists(), "{file} is missing");
    }
    assert!(fs::read_dir(run.join("tensorboard")).unwrap().count() > 0);
    assert!(fs::read_dir(run.join("trajectories")).unwrap().count() > 0);
}

#[test]
fn sft_then_synchronous_rl_then_eval() {
    let dir = TempDir::new().unwrap();
    let (sft, rl, eval) = (dir.path().join("sft"), dir.path().join("rl"), dir.path().join("eval"));
    let output = run(&[
        "sft",
        "--model.path",
        path(tiny_model()),
        "--data.conversations",
        "examples/demo/sft.jsonl",
        "--sft.passes",
        "2",
        "--sft.max_steps",
        "5",
        "--optim.lr",
        "1e-3",
        "--run.dir",
        path(&sft),
    ]);
    assert_ok(&output);
    let losses: Vec<f64> = metrics(&sft).iter().map(|line| line["train/loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), 5);
    assert!(losses[4] < losses[0], "{losses:?}");

    let model = sft.join("model");
    let output = molt()
        .args(short_run(&rl))
        .args(["--model.path", path(&model), "--train.sync", "true"])
        .args(["--eval.prompts", "examples/demo/held-out.jsonl", "--train.eval_at_start", "true"])
        .args(["--eval.max_new_tokens", "8"])
        .output()
        .unwrap();
    assert_ok(&output);
    check_run(&rl, 3);
    let summary = json(&rl.join("summary.json"));
    assert!(
        summary["held_out_accuracy_before"].is_number() && summary["held_out_accuracy_after"].is_number()
    );
    for line in metrics(&rl) {
        assert_eq!(line["rollout/staleness_max"], 0.0, "synchronous means strictly on-policy");
        assert_eq!(line["train/on_policy_tokens"], line["train/tokens"]);
        assert!(line["train/logprob_gap_max"].as_f64().unwrap() < GAP, "{line}");
    }

    // The saved model is a model: it loads again and can be evaluated.
    let output = run(&[
        "eval",
        "--model.path",
        path(&rl.join("model")),
        "--eval.prompts",
        "examples/demo/held-out.jsonl",
        "--reward.name",
        "exact-match",
        "--eval.samples",
        "4",
        "--eval.k",
        "1,4",
        "--eval.max_new_tokens",
        "8",
        "--run.dir",
        path(&eval),
    ]);
    assert_ok(&output);
    assert!(text(&output).contains("pass@4"), "{}", text(&output));
}

#[test]
fn asynchronous_rl() {
    let dir = TempDir::new().unwrap();
    let rl = dir.path().join("rl");
    let output = molt()
        .args(short_run(&rl))
        .args(["--train.async_queue_size", "2", "--train.max_steps", "6"])
        .output()
        .unwrap();
    assert_ok(&output);
    check_run(&rl, 6);
    for line in metrics(&rl) {
        assert!(line["rollout/staleness_max"].as_f64().unwrap() <= 2.0, "{line}");
    }
}

#[test]
fn a_run_ends_with_its_data() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..10).map(|i| format!("{{\"prompt\": \"{i}\", \"answer\": \"{i}\"}}\n")).collect();
    let file = dir.path().join("ten.jsonl");
    fs::write(&file, rows).unwrap();
    let rl = dir.path().join("rl");
    let output = molt()
        .args(short_run(&rl))
        .args(["--data.prompts", path(&file), "--train.max_steps", "100"])
        .output()
        .unwrap();
    assert_ok(&output);
    // Ten prompts in batches of four: two whole batches and a short one.
    check_run(&rl, 3);
    assert_eq!(metrics(&rl)[2]["rollout/groups"], 2.0);
}

#[test]
fn skipped_rows_are_counted() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    let good = "{\"prompt\": \"1\", \"answer\": \"1\"}\n".repeat(4);
    fs::write(&file, format!("{good}broken\n")).unwrap();
    let rl = dir.path().join("rl");
    let output = molt()
        .args(short_run(&rl))
        .args(["--data.prompts", path(&file), "--data.on_bad_row", "skip"])
        .output()
        .unwrap();
    assert_ok(&output);
    assert!(text(&output).contains("1 malformed skipped"), "{}", text(&output));
}

#[test]
fn prompts_longer_than_the_context_are_dropped_and_counted() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    let short = "{\"prompt\": \"1\", \"answer\": \"1\"}\n".repeat(4);
    let long = format!("{{\"prompt\": \"{}\", \"answer\": \"1\"}}\n", "1".repeat(5000));
    fs::write(&file, format!("{long}{short}")).unwrap();
    let rl = dir.path().join("rl");
    let output = molt().args(short_run(&rl)).args(["--data.prompts", path(&file)]).output().unwrap();
    assert_ok(&output);
    assert_eq!(json(&rl.join("summary.json"))["dropped"]["prompt-too-long"], 4);
}
