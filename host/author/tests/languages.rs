//! The same example in every language gives the same numbers on the same inputs, exactly, as components that the
//! real build made. What was built once is kept for the next run, until its source or the build changes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kept;

use kept::LANGUAGES;
use molt_core::chat::{Message, Role, Task};
use molt_sandbox::{Action, Call, EstimatorBatch, Library, Limits, Sample, Sandbox};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| Sandbox::new(Some(&kept::place("compiled"))).unwrap());

/// The path of the template's component.
fn component(kind: &str, language: &str) -> String {
    kept::component(kind, language, &Path::new(env!("CARGO_MANIFEST_DIR")).join("src/build"), molt_plugin)
}

fn molt_plugin(args: &[&str], dir: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_molt-plugin"));
    command.args(args).current_dir(dir).env("CARGO_TARGET_DIR", kept::place("projects"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn task(label: Option<&str>) -> Task {
    let messages = vec![Message::new(Role::User, "Let us play.")];
    Task { id: "1".into(), messages, label: label.map(str::to_owned), fields: vec![] }
}

fn call(seed: u64) -> Call {
    Call { rollout: None, seed }
}

/// Runs `given` in every language and compares what comes back, by name of the input.
async fn compare<T: PartialEq + std::fmt::Debug>(
    kind: &str,
    run: impl AsyncFn(&str) -> Vec<(String, T)>,
) -> Vec<(String, T)> {
    let mut reference: Option<Vec<(String, T)>> = None;
    for language in LANGUAGES {
        let results = run(&component(kind, language)).await;
        let Some(expected) = &reference else {
            reference = Some(results);
            continue;
        };
        assert_eq!(results.len(), expected.len());
        for (result, expected) in results.iter().zip(expected) {
            assert_eq!(result, expected, "{kind} in {language}");
        }
    }
    reference.unwrap()
}

const TEXTS: [&str; 22] = [
    "",
    " \t\r\n\u{b}\u{c}",
    "42",
    " 42\n",
    "42, I think",
    "4",
    "43",
    "\u{a0}42\u{a0}", // white space to Unicode and not to ASCII
    "\u{1c}42\u{85}", // white space to Python's str.strip
    "\u{feff}42",     // white space to JavaScript's trim
    "naïve 猫",
    "naïve 犬",
    "nai\u{308}ve 猫", // the same to the eye, other code points
    "👩‍👩‍👧‍👦",
    "👩‍👩‍👦",
    "𝔸𝔹ℂ",
    "𝔸𝔹",
    "a\0b",
    "a\0c",
    "٤٢",
    "\u{10ffff}\u{e000}",
    "line one\nline two",
];

#[tokio::test(flavor = "multi_thread")]
async fn rewards() {
    let long = "é".repeat(100_000);
    let mut texts = TEXTS.to_vec();
    let blanks = format!("4{}x", " ".repeat(100_000));
    texts.extend([long.as_str(), &blanks]);
    let verdicts = compare("reward", async |path| {
        let reward = SANDBOX.reward(&Library::new(&[]), path, Limits::default()).unwrap();
        let mut verdicts = Vec::new();
        for (i, completion) in texts.iter().enumerate() {
            for label in [None].into_iter().chain(texts.iter().copied().map(Some)) {
                let truncated = i % 2 == 1;
                let sample = Sample {
                    task: task(label),
                    seed: i as u64,
                    messages: vec![],
                    completion: (*completion).into(),
                    truncated,
                };
                let verdict = reward.score(call(i as u64), &sample).await.unwrap();
                verdicts.push((format!("{completion:.20} {label:.20?}"), verdict));
            }
        }
        verdicts
    })
    .await;
    assert_eq!(verdicts.len(), 24 * 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn group_rewards() {
    let long = "é".repeat(100_000);
    let (mut texts, mut twice) = (TEXTS.to_vec(), TEXTS.repeat(2));
    texts.extend(vec![long.as_str(); 3]);
    twice.rotate_left(5);
    let verdicts = compare("group-reward", async |path| {
        let reward = SANDBOX.reward(&Library::new(&[]), path, Limits::default()).unwrap();
        let mut verdicts = Vec::new();
        for (number, group) in [&texts[..], &twice, &TEXTS[2..3], &["42"; 8]].into_iter().enumerate() {
            for label in
                [None, Some(""), Some("42"), Some("4"), Some("猫"), Some("👩‍👩"), Some("\0"), Some(&*long)]
            {
                let sample = |(i, completion): (usize, &&str)| Sample {
                    // One row of the longest group is without a label.
                    task: task(label.filter(|_| i != 30)),
                    seed: number as u64,
                    messages: vec![],
                    completion: (*completion).into(),
                    truncated: i % 2 == 1,
                };
                let samples: Vec<Sample> = group.iter().enumerate().map(sample).collect();
                let scored = reward.score_group(call(number as u64), &samples).await.unwrap();
                verdicts.push((format!("group {number}, {label:.20?}"), scored));
            }
        }
        verdicts
    })
    .await;
    assert_eq!(verdicts.len(), 4 * 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn environments() {
    let scripts: [&[&str]; 6] = [
        &["50", "25", "75", "12", "42", "1", "100", "never reached"],
        &["", "no number", "0000000042", "000000042", "１２", "٤٢", "²", "after the end"],
        &["1", "1", "1", "1", "1", "1", "x", "after the end"],
        &["-5", "3.7", "1e3", "7up and 9", "\0", "100", "99"],
        &["99999999999999999999999999", "4294967296", "999999999", "18446744073709551617", "0", "2", "1"],
        &["é42", "42é", "4 2", "42", "100", "1", "8"],
    ];
    let seeds = [0, 1, 41, 98, 99, 100, (1 << 53) - 1, 1 << 53, u64::MAX];
    let episodes = compare("environment", async |path| {
        let environment = SANDBOX.environment(&Library::new(&[]), path, Limits::default()).unwrap();
        let mut episodes = Vec::new();
        for seed in seeds {
            for (number, script) in scripts.iter().enumerate() {
                let mut episode = environment.open(call(seed), &task(None)).await.unwrap();
                let mut said = vec![format!("{:?}", episode.reset().await.unwrap())];
                for text in *script {
                    let action = Action { text: (*text).into(), tool_calls: vec![], truncated: seed == 1 };
                    let transition = episode.step(&action).await.unwrap();
                    said.push(format!("{transition:?}"));
                    if transition.done {
                        break;
                    }
                }
                episodes.push((format!("seed {seed}, script {number}"), said));
            }
        }
        episodes
    })
    .await;
    assert!(episodes.iter().any(|(_, said)| said.len() == 8 && said[7].contains("done: true")));
}

/// Groups of 1 to 8 rollouts, interleaved; rewards of several sizes.
fn batch(seed: u64, scale: f32) -> EstimatorBatch {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut groups: Vec<u32> = (0..24).collect();
    groups.extend((0..60).map(|_| random() % 24));
    let rewards: Vec<f32> = groups.iter().map(|_| (random() as f32 / 1e6 - 8.0) * scale).collect();
    of(rewards, groups)
}

fn of(rewards: Vec<f32>, groups: Vec<u32>) -> EstimatorBatch {
    let rollouts = rewards.len() as u32;
    EstimatorBatch {
        groups,
        segment_rollouts: (0..rollouts).collect(),
        segment_offsets: (0..=rollouts).map(|rollout| 2 * rollout).collect(),
        turns: vec![0; 2 * rewards.len()],
        turn_rewards: rewards.clone(),
        turn_offsets: (0..=rollouts).collect(),
        kl: vec![],
        values: vec![],
        kl_coef: 0.0,
        parameters: vec![],
        rewards,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn estimators() {
    let mut batches = vec![
        of(vec![0.25; 8], vec![0; 8]),
        of(vec![1.0, 0.0, 1.0], vec![0, 1, 0]),
        of(vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], vec![0; 7]),
        of(vec![1e30, -1e-30, 1e-45, -1e30], vec![0; 4]),
        of(vec![1.0, 16_777_216.0, -16_777_216.0, 1e-8], vec![0; 4]),
    ];
    batches.extend([(1, 1.0), (2, 1e-6), (3, 1e20), (4, 0.1)].map(|(seed, scale)| batch(seed, scale)));
    let estimates = compare("estimator", async |path| {
        let estimator = SANDBOX.estimator(&Library::new(&[]), path, Limits::default()).unwrap();
        let traits = estimator.traits().await.unwrap();
        let mut estimates = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            let estimate = estimator.estimate(batch).await.unwrap();
            estimates.push((format!("batch {number}"), (traits.clone(), estimate)));
        }
        estimates
    })
    .await;
    assert_eq!(estimates.len(), 9);
}
