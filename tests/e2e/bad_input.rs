//! Whatever is wrong before a run starts is one clear sentence, exit code 2, and nothing written.

use molt_tests::{molt, path, short_run, text, tiny_model};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Runs `molt train` with `extra` arguments over a good short run and checks the refusal.
fn refused(extra: &[&str], expected: &[&str]) {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let output = molt().args(short_run(&run)).args(extra).output().unwrap();
    check(&output, expected);
    assert!(!run.exists(), "{extra:?} left a run directory behind");
}

fn check(output: &std::process::Output, expected: &[&str]) {
    let printed = text(output);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    for part in expected {
        assert!(printed.contains(part), "expected {part:?} in:\n{printed}");
    }
    assert!(!printed.contains("panicked"), "{printed}");
}

/// A copy of the tiny model that a test may spoil.
fn model_copy(dir: &Path) -> std::path::PathBuf {
    let to = dir.join("model");
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(tiny_model()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

fn refused_model(spoil: impl FnOnce(&Path), expected: &[&str]) {
    let dir = TempDir::new().unwrap();
    let model = model_copy(dir.path());
    spoil(&model);
    refused(&["--model.path", path(&model)], expected);
}

fn refused_data(rows: &str, expected: &[&str]) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.jsonl");
    fs::write(&file, rows).unwrap();
    refused(&["--data.prompts", path(&file)], expected);
}

#[test]
fn unknown_flag_names_the_nearest() {
    refused(&["--train.async_que_size", "2"], &["train.async_queue_size"]);
}

#[test]
fn unknown_key_in_the_file_names_the_nearest() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("run.toml");
    fs::write(&file, "[train]\nmax_stepz = 3\n").unwrap();
    refused(&["--config", path(&file)], &["train.max_stepz", "train.max_steps"]);
}

#[test]
fn settings_of_experts_that_the_model_does_not_have() {
    let expected = "no layer of the model has experts";
    refused(&["--train.replay_routing"], &["train.replay_routing", expected]);
    refused(&["--moe.router_aux_coef", "0.01"], &["moe.router_aux_coef", expected]);
}

#[test]
fn values_of_the_wrong_type_or_range() {
    refused(&["--rollout.batch_size", "many"], &["rollout.batch_size", "many"]);
    refused(&["--rollout.batch_size", "0"], &["rollout.batch_size"]);
    refused(&["--rollout.temperature", "0"], &["rollout.temperature"]);
    refused(&["--eval.prompts", "examples/demo/held-out.jsonl", "--eval.k", "2"], &["eval.k"]);
}

#[test]
fn tokens_of_older_weights_without_a_correction() {
    refused(&["--algo.importance", "old"], &["algo.importance"]);
}

#[test]
fn a_group_estimator_with_one_sample() {
    refused(&["--rollout.samples_per_prompt", "1"], &["grpo", "rollout.samples_per_prompt"]);
}

#[test]
fn rollouts_that_nothing_scores_and_labels_that_are_not_there() {
    refused(&["--reward.name="], &["reward.name is required with agent.name single-turn"]);
    refused(
        &["--data.label_key", "gold"],
        &[
            "data.label_key is gold, and no row has a value in that column",
            "the columns that the first row has: answer",
        ],
    );
}

/// What takes the probabilities of sampling for an age to correct, and what does not, is seen before a run.
#[test]
fn a_loss_that_corrects_where_the_settings_do_or_not_at_all() {
    let twice = ["--algo.importance", "old", "--algo.correction.level", "token", "--algo.loss", "ppo-clip"];
    refused(&twice, &["the loss ppo-clip turns on the probability", "would have it done twice"]);
    refused(&twice[2..], &["the loss ppo-clip turns on the probability", "would have it done twice"]);
    refused(&["--algo.loss", "GSPO"], &["algo.loss GSPO cannot be used", "did you mean gspo?"]);
}

#[test]
fn what_the_estimator_makes_nothing_of() {
    refused(
        &["--algo.kl.coef", "0.1", "--algo.kl.in", "reward"],
        &["grpo does not look at it", "algo.kl.in loss"],
    );
    refused(&["--critic.warmup_steps", "2"], &["grpo needs no values", "gae"]);
    let model = path(tiny_model());
    refused(
        &["--teacher.model", model, "--algo.estimator", "grpo"],
        &["grpo does not look at that", "leave algo.estimator out"],
    );
}

#[test]
fn a_divergence_without_the_gradient_of_one_and_a_distillation_without_a_teacher() {
    refused(
        &["--algo.kl.coef", "0.1", "--algo.kl.estimator", "k1"],
        &["algo.kl.estimator is k1", "gradient is not that of the divergence"],
    );
    refused(&["--algo.estimator", "on-policy-distill"], &["learns from a teacher alone", "teacher.model"]);
}

#[test]
fn a_teacher_that_is_not_there_or_reads_other_tokens() {
    refused(&["--teacher.model", "no/such/model"], &["no/such/model", "teacher.model"]);
    let dir = TempDir::new().unwrap();
    let teacher = model_copy(dir.path());
    let file = teacher.join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let names: Vec<String> = vocabulary.keys().take(2).cloned().collect();
    let [first, second] = [&names[0], &names[1]].map(|name| vocabulary[name].clone());
    vocabulary.insert(names[0].clone(), second);
    vocabulary.insert(names[1].clone(), first);
    fs::write(&file, tokenizer.to_string()).unwrap();
    refused(
        &["--teacher.model", path(&teacher)],
        &["teacher.model", "its tokenizer is another", "model.path"],
    );
}

#[test]
fn missing_model() {
    refused(&["--model.path", "no/such/model"], &["no/such/model", "config.json"]);
}

#[test]
fn corrupt_weights() {
    refused_model(
        |model| {
            let file = model.join("model.safetensors");
            let bytes = fs::read(&file).unwrap();
            fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        },
        &["model.safetensors"],
    );
}

#[test]
fn config_that_is_not_json() {
    refused_model(|model| fs::write(model.join("config.json"), "{").unwrap(), &["config.json"]);
}

#[test]
fn architecture_that_is_not_supported() {
    refused_model(
        |model| {
            let file = model.join("config.json");
            let text = fs::read_to_string(&file).unwrap();
            let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
            config["model_type"] = "gpt2".into();
            fs::write(&file, config.to_string()).unwrap();
        },
        &["gpt2", "llama"],
    );
}

#[test]
fn tokenizer_without_a_chat_template() {
    refused_model(
        |model| {
            let file = model.join("tokenizer_config.json");
            let text = fs::read_to_string(&file).unwrap();
            let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
            config.as_object_mut().unwrap().remove("chat_template");
            fs::write(&file, config.to_string()).unwrap();
            let _ = fs::remove_file(model.join("chat_template.jinja"));
        },
        &["chat template", "model.chat_template"],
    );
}

#[test]
fn malformed_rows_are_named_by_file_and_line() {
    let good = r#"{"prompt": "1", "answer": "1"}"#;
    refused_data(&format!("{good}\nnot json\n"), &["rows.jsonl:2"]);
    refused_data(&format!("{good}\n{good}\n{{\"answer\": \"1\"}}\n"), &["rows.jsonl:3", "prompt"]);
    refused_data("", &["rows.jsonl"]);
}

#[test]
fn plugin_of_the_wrong_kind() {
    refused(&["--reward.name", "grpo"], &["grpo", "estimator", "reward"]);
    refused(&["--agent.name", "exact-match"], &["exact-match", "reward", "environment"]);
}

#[test]
fn plugin_that_does_not_exist() {
    refused(&["--reward.name", "exact-mach"], &["exact-mach", "exact-match"]);
}

#[test]
fn plugin_that_is_no_component() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("broken.wasm");
    fs::write(&file, b"\0asm\x01\0\0\0").unwrap();
    refused(&["--reward.name", path(&file)], &["broken.wasm"]);
}

#[test]
fn run_directory_that_cannot_be_written() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let output = molt().args(short_run(&file.join("run"))).output().unwrap();
    check(&output, &["file/run"]);
}

#[test]
fn run_directory_that_is_in_use() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("metrics.jsonl"), "").unwrap();
    let output = molt().args(short_run(dir.path())).output().unwrap();
    check(&output, &["empty", "run.dir"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
