//! What a plugin author and a plugin attacker can do to a run.

use molt_tests::{assert_ok, build_plugin, json, metrics, molt, path, short_run, text};
use std::fs;
use tempfile::TempDir;

/// One file, one pure function: the whole of a new algorithm.
const LEAVE_ONE_OUT: &str = r#"
use molt_plugin::estimator::{Batch, Credit, Estimates, Estimator, Traits};

struct LeaveOneOut;

impl Estimator for LeaveOneOut {
    fn describe() -> Traits {
        Traits { needs_group: true, ..Traits::default() }
    }

    fn estimate(batch: Batch) -> Result<Estimates, String> {
        let mut advantages = vec![0.0; batch.rewards.len()];
        for group in batch.rollouts_by_group() {
            let sum: f32 = group.iter().map(|&rollout| batch.rewards[rollout]).sum();
            for &rollout in &group {
                let reward = batch.rewards[rollout];
                advantages[rollout] = reward - (sum - reward) / (group.len() as f32 - 1.0);
            }
        }
        let returns = Credit::PerRollout(batch.rewards);
        Ok(Estimates { advantages: Credit::PerRollout(advantages), returns })
    }
}

molt_plugin::export_estimator!(LeaveOneOut);
"#;

#[test]
fn a_new_estimator_is_one_component() {
    let dir = TempDir::new().unwrap();
    let component = build_plugin(dir.path(), "leave-one-out", LEAVE_ONE_OUT);
    let inspected = molt().args(["plugin", "inspect", path(&component)]).output().unwrap();
    assert_ok(&inspected);
    for part in ["estimator", "0.1.0", "sha256:"] {
        assert!(text(&inspected).contains(part), "{}", text(&inspected));
    }
    let run = dir.path().join("run");
    let output = molt().args(short_run(&run)).args(["--algo.estimator", path(&component)]).output().unwrap();
    assert_ok(&output);
    assert_eq!(json(&run.join("summary.json"))["steps"], 3);
    assert!(metrics(&run).iter().all(|line| line["train/grad_norm"].as_f64().unwrap().is_finite()));
}

/// A reward that attacks on some rows, chosen by the row's label, and scores the others.
const MIXED: &str = r#"
use molt_plugin::reward::{Reward, Sample, Verdict};

struct Mixed;

impl Reward for Mixed {
    fn score(sample: Sample) -> Verdict {
        let reward = match sample.task.label.as_deref() {
            Some("loop") => loop { std::hint::black_box(()); },
            Some("allocate") => { let mut all = Vec::new(); loop { all.push(std::hint::black_box(vec![1u8; 1 << 20])); } },
            Some("trap") => panic!("the grader fell over"),
            Some("nan") => f64::NAN,
            Some("file") => std::fs::read("/etc/passwd").map_or(0.0, |bytes| bytes.len() as f64),
            Some("network") => std::net::TcpStream::connect("127.0.0.1:80").map_or(0.0, |_| 1.0),
            _ => sample.completion.len() as f64 / 100.0,
        };
        Verdict::reward(reward)
    }
}

molt_plugin::export_reward!(Mixed);
"#;

#[test]
fn hostile_rewards_cost_their_own_rollouts() {
    let dir = TempDir::new().unwrap();
    let component = build_plugin(dir.path(), "mixed", MIXED);
    let attacks = [
        ("loop", "cpu-limit"),
        ("allocate", "memory-limit"),
        ("trap", "trap"),
        ("nan", "not-finite"),
        ("file", "denied"),
        ("network", "denied"),
    ];
    let row = |label: &str| format!("{{\"prompt\": \"1 2 3\", \"answer\": \"{label}\"}}\n");
    let mut rows: String = attacks.iter().map(|(label, _)| row(label)).collect();
    rows += &row("fine").repeat(18);
    let file = dir.path().join("rows.jsonl");
    fs::write(&file, rows).unwrap();
    let run = dir.path().join("run");
    let output = molt()
        .args(short_run(&run))
        .args(["--data.prompts", path(&file), "--reward.name", path(&component)])
        .args([
            "--train.max_steps",
            "100",
            "--plugins.max_error_rate",
            "0.9",
            "--plugins.limits.cpu_ms",
            "1500",
            "--plugins.limits.memory_mib",
            "32",
        ])
        .output()
        .unwrap();
    assert_ok(&output);
    let summary = json(&run.join("summary.json"));
    // Every attacker's four rollouts are dropped by name; the 18 healthy prompts are trained: four batches of four, one of two.
    let mut expected = std::collections::BTreeMap::new();
    for (_, label) in attacks {
        *expected.entry(label).or_insert(0) += 4;
    }
    for (label, count) in expected {
        assert_eq!(summary["dropped"][label], count, "{label}: {summary}");
    }
    assert_eq!(summary["steps"], 5);
    let log = fs::read_to_string(run.join("run.log")).unwrap();
    assert!(
        log.contains("mixed") && log.contains("1500 ms") && log.contains("the grader fell over"),
        "{log}"
    );
}

#[test]
fn past_the_error_rate_the_run_stops_and_says_why() {
    let dir = TempDir::new().unwrap();
    let component = build_plugin(dir.path(), "mixed-rate", MIXED);
    let file = dir.path().join("rows.jsonl");
    fs::write(&file, "{\"prompt\": \"1 2 3\", \"answer\": \"trap\"}\n".repeat(100)).unwrap();
    let run = dir.path().join("run");
    let output = molt()
        .args(short_run(&run))
        .args(["--data.prompts", path(&file), "--reward.name", path(&component)])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for part in ["plugins.max_error_rate", "mixed", "the grader fell over"] {
        assert!(text(&output).contains(part), "{part}: {}", text(&output));
    }
    let status = json(&run.join("status.json"));
    assert_eq!(status["state"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("mixed"), "{status}");
    assert!(json(&run.join("summary.json"))["dropped"]["trap"].as_u64().unwrap() >= 64);
}
