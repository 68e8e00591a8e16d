//! Supervised fine-tuning, and then reinforcement learning with the embedded engine.

use crate::parts::*;
use crate::shaping::table;
use molt_core::ids::WeightVersion;
use molt_core::settings::{BadRow, Compute, Generator as GeneratorSettings, Lora, Optim, SftSettings};
use molt_generator::Engine;
use molt_model::{Chat, Decoder, Weights};
use molt_observe::{RunDir, read_metrics};
use molt_trainer::checkpoint::From;
use molt_trainer::sft::SftSummary;
use molt_trainer::{conversations, sft};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Conversations that answer every question with every digit.
fn write_conversations(path: &Path, more: &str) {
    let row = |n: usize| format!("{{\"prompt\": \"q{}\", \"answer\": \"{}\"}}\n", n % 4, n / 4);
    let rows: String = (0..40).map(row).collect();
    std::fs::write(path, rows + more).unwrap();
}

fn sft_settings(dir: &Path, model: &Path) -> SftSettings {
    let mut settings = SftSettings::default();
    settings.model.path = model.to_owned();
    settings.data.conversations = vec![dir.join("conversations.jsonl")];
    settings.run.seed = 5;
    settings.sft.passes = 12;
    settings.sft.batch_size = 10;
    settings.optim = Optim { lr: 1e-2, ..Optim::default() };
    settings
}

fn fine_tune(settings: &SftSettings, dir: &Path) -> (SftSummary, PathBuf) {
    let chat = Chat::load(&settings.model.path, None).unwrap();
    let sources = conversations::load(&settings.data, &chat, 128).unwrap();
    let held_out = settings.eval.conversations.as_deref();
    let held_out = held_out.map(|path| conversations::read_file(path, &settings.data, &chat, 128).unwrap());
    let data = sft::Data { sources: &sources, held_out: held_out.as_ref().map(|rows| &rows.rows[..]) };
    let mut run_dir = RunDir::create(dir, "sft").unwrap();
    let mut weights = Weights::open(&settings.model.path).unwrap().in_numbers(settings.model.compute);
    if let Some((rank, alpha)) = settings.lora.size() {
        weights = weights.with_adapter(rank, alpha, &settings.lora.targets, settings.run.seed).unwrap();
    }
    let (summary, _) = sft::train(
        settings,
        (weights, None),
        &data,
        &From::default(),
        &mut run_dir,
        &CancellationToken::new(),
    )
    .unwrap();
    (summary, run_dir.path().to_owned())
}

#[test]
fn a_model_learns_a_format_and_then_from_reward() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let (tuned, sft_dir) = fine_tune(&sft_settings(dir.path(), &model), &dir.path().join("sft"));
    assert_eq!((tuned.steps, tuned.rows, tuned.tokens), (48, 40, 12 * 40 * 2));
    // Ten equally likely digits, then the end of the turn: ln(10) / 2 = 1.15 per token at best.
    assert!(tuned.loss_first.unwrap() > 4.0 && tuned.loss_last.unwrap() < 1.7, "{tuned:?}");

    let mut settings = settings(&sft_dir.join("model"));
    settings.train.async_queue_size = 1;
    // Once all is solved nothing is learnt for a while. With a shorter memory the first mistake after that moves
    // every weight by far more than the mistakes before, and the policy may be lost.
    settings.optim = Optim { lr: 3e-3, beta2: 0.999, ..Optim::default() };
    let decoder = Decoder::load(&settings.model.path).unwrap();
    let chat = Chat::load(&settings.model.path, None).unwrap();
    let generator = GeneratorSettings::default();
    let engine = Engine::start(decoder, Arc::clone(chat.tokenizer()), WeightVersion(0), &generator, 128);
    let (result, run_dir) = run(
        settings,
        Arc::new(engine),
        (prompts(200, "7"), Some(prompts(32, "7"))),
        &dir.path().join("rl"),
        &CancellationToken::new(),
    );
    let summary = result.unwrap();
    assert!(summary.held_out_accuracy_before.unwrap() < 0.45, "{summary:?}");
    assert!(summary.held_out_accuracy_after.unwrap() > 0.85, "{summary:?}");
    assert!(summary.reward_last.unwrap() > summary.reward_first.unwrap() + 0.4, "{summary:?}");
    assert!(summary.logprob_gap_max.unwrap() < 1e-4, "{summary:?}");
    let rows = read_metrics(&run_dir.join("metrics.jsonl")).unwrap();
    let staleness = rows.iter().filter_map(|row| row.values.get("rollout/staleness_max"));
    assert_eq!(staleness.clone().count(), 50);
    assert!(staleness.clone().all(|&stale| stale <= 1.0) && staleness.clone().any(|&stale| stale == 1.0));
    assert!(rows.iter().any(|row| row.values.get("train/on_policy_tokens").is_some_and(|&n| n > 0.0)));
}

/// Layers in bfloat16, in training and decoding: what is sampled is what is trained, to the precision of its numbers.
#[test]
fn a_model_learns_in_bfloat16() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let mut sft = sft_settings(dir.path(), &model);
    sft.model.compute = Compute::Bfloat16;
    let (tuned, sft_dir) = fine_tune(&sft, &dir.path().join("sft"));
    assert!(tuned.loss_first.unwrap() > 4.0 && tuned.loss_last.unwrap() < 1.7, "{tuned:?}");

    let mut settings = settings(&sft_dir.join("model"));
    settings.model.compute = Compute::Bfloat16;
    settings.train.max_steps = Some(25);
    settings.train.sync = true;
    settings.optim = Optim { lr: 3e-3, beta2: 0.999, ..Optim::default() };
    let decoder = Decoder::load(&settings.model.path).unwrap().in_numbers(settings.model.compute);
    let chat = Chat::load(&settings.model.path, None).unwrap();
    let generator = GeneratorSettings::default();
    let engine = Engine::start(decoder, Arc::clone(chat.tokenizer()), WeightVersion(0), &generator, 128);
    let stop = CancellationToken::new();
    let prompts = (prompts(200, "7"), Some(prompts(32, "7")));
    let (result, _) = run(settings, Arc::new(engine), prompts, &dir.path().join("rl"), &stop);
    let summary = result.unwrap();
    assert!(summary.reward_last.unwrap() > summary.reward_first.unwrap() + 0.3, "{summary:?}");
    // All tokens are on-policy; in turns this short the roundings are the same.
    assert!(summary.logprob_gap_max.unwrap() < 1e-3, "{summary:?}");
}

/// The base stays, the adapter learns, and both forms of it are there at the end.
#[test]
fn an_adapter_learns_and_is_saved_merged_and_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let mut settings = sft_settings(dir.path(), &model);
    settings.lora = Lora { rank: Some(8), alpha: None, targets: vec!["o_proj".into(), "up_proj".into()] };
    let (tuned, run_dir) = fine_tune(&settings, &dir.path().join("sft"));
    assert!(tuned.loss_last.unwrap() < 0.9 * tuned.loss_first.unwrap(), "{tuned:?}");
    let (base, merged) = (Decoder::load(&model).unwrap(), Decoder::load(&run_dir.join("model")).unwrap());
    let moved = base.parameters().into_iter().zip(merged.parameters()).filter(|((_, a), (_, b))| a != b);
    let moved: Vec<String> = moved.map(|((name, _), _)| name).collect();
    assert_eq!(moved.len(), 4, "{moved:?}");
    assert!(moved.iter().all(|name| name.contains("o_proj") || name.contains("up_proj")));
    let config = json(&run_dir.join("adapter/adapter_config.json"));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&8.into(), &16.0.into()));
    assert!(run_dir.join("adapter/adapter_model.safetensors").is_file());
}

#[test]
fn several_files_with_weights_and_a_loss_on_what_is_held_out() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let [more, held_out] = ["more.jsonl", "held-out.jsonl"].map(|name| dir.path().join(name));
    std::fs::write(&more, "{\"prompt\": \"q1\", \"answer\": \"7\"}\n".repeat(10)).unwrap();
    std::fs::write(&held_out, "{\"prompt\": \"q2\", \"answer\": \"7\"}\n".repeat(23)).unwrap();
    let mut settings = sft_settings(dir.path(), &model);
    settings.data.conversations.push(more);
    settings.data.weight = vec![0.5, 4.0];
    settings.eval.conversations = Some(held_out);
    settings.eval.every = Some(4);
    settings.sft.passes = 3;
    let (summary, run) = fine_tune(&settings, &dir.path().join("run"));
    // Half of 40 and four times 10 in a pass, ten at a time.
    assert_eq!((summary.rows, summary.steps, summary.tokens), (50, 3 * 6, 3 * 60 * 2));
    let rows = read_metrics(&run.join("metrics.jsonl")).unwrap();
    let losses: Vec<(u64, f64)> =
        rows.iter().filter_map(|row| Some((row.step, *row.values.get("eval/loss")?))).collect();
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 4, 8, 12, 16, 18]);
    assert_eq!(
        (summary.held_out_loss_before, summary.held_out_loss_after),
        (Some(losses[0].1), Some(losses[5].1))
    );
    // What is held out is the digit that is learnt most.
    assert!(losses[0].1 > 4.0 && losses[5].1 < 1.0, "{losses:?}");
}

#[test]
fn every_metric_of_supervised_training_is_in_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let mut settings = sft_settings(dir.path(), &model);
    settings.eval.conversations = Some(dir.path().join("conversations.jsonl"));
    settings.sft.max_steps = Some(1);
    let (_, run_dir) = fine_tune(&settings, &dir.path().join("sft"));
    let rows = read_metrics(&run_dir.join("metrics.jsonl")).unwrap();
    let written: BTreeSet<String> = rows.into_iter().flat_map(|row| row.values.into_keys()).collect();
    assert_eq!(written, table("Metrics of supervised training").into_iter().collect());
}

#[test]
fn supervised_runs_of_one_seed_are_identical() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    write_conversations(&dir.path().join("conversations.jsonl"), "");
    let mut settings = sft_settings(dir.path(), &model);
    settings.sft.max_steps = Some(6);
    let runs = ["a", "b"].map(|name| weights(&fine_tune(&settings, &dir.path().join(name)).1));
    assert!(runs[0] == runs[1]);
    settings.run.seed = 6;
    assert!(runs[0] != weights(&fine_tune(&settings, &dir.path().join("c")).1), "the seed decides the order");
}

#[test]
fn bad_conversations_are_refused_by_line_or_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let mut settings = sft_settings(dir.path(), &model);
    let long = "x".repeat(200);
    write_conversations(
        &settings.data.conversations[0],
        &format!("{{\"prompt\": \"q0\"}}\n{{\"prompt\": \"{long}\", \"answer\": \"1\"}}\n"),
    );
    let chat = Chat::load(&model, None).unwrap();
    let error = conversations::load(&settings.data, &chat, 128).unwrap_err().to_string();
    assert!(
        error.contains("conversations.jsonl:41: ") && error.contains("conversations.jsonl:42: "),
        "{error}"
    );
    assert!(error.contains("do not fit a context of 128"), "{error}");
    settings.data.on_bad_row = BadRow::Skip;
    let rows = conversations::load(&settings.data, &chat, 128).unwrap();
    assert_eq!((rows[0].rows.len(), rows[0].skipped), (40, 2));
}
