//! Rewards and credit put together: the settings files in `examples/composition`, each for a few steps.

use molt_tests::{assert_ok, json, metrics, molt, path, roomy_model, short_run, text};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// A short run of an example into `run`; later flags win.
fn example(name: &str, run: &Path, extra: &[&str]) -> Output {
    let config = format!("examples/composition/{name}.toml");
    // The arguments of a short run without its own data and reward, which the file gives.
    let base = short_run(run);
    let own = ["--data.prompts", "--reward.name"];
    let base =
        base[..1].iter().chain(base[1..].chunks(2).filter(|pair| !own.contains(&pair[0].as_str())).flatten());
    let output = molt()
        .args(base)
        .args(["--config", &config, "--train.max_steps", "2", "--train.sync", "true"])
        .args(extra)
        .output()
        .unwrap();
    assert_ok(&output);
    assert_eq!(json(&run.join("summary.json"))["steps"], 2);
    output
}

fn run_in(dir: &TempDir) -> PathBuf {
    dir.path().join("run")
}

#[test]
fn two_rewards_with_weights() {
    let dir = TempDir::new().unwrap();
    let run = run_in(&dir);
    let output = example(
        "weights",
        &run,
        &["--eval.prompts", "examples/demo/held-out.jsonl", "--eval.max_new_tokens", "8"],
    );
    for line in metrics(&run) {
        let of = |name: &str| line[name].as_f64().unwrap();
        let sum = 0.8 * of("reward/exact-match") + 0.2 * of("reward/math");
        assert!((of("rollout/reward_mean") - sum).abs() < 1e-9, "{line}");
    }
    assert!(fs::read_to_string(run.join("metrics.jsonl")).unwrap().contains("eval/reward/math"));
    for part in ["exact-match", "math", "grpo"] {
        let line = text(&output).lines().find(|line| line.contains(part)).map(str::to_owned).unwrap();
        assert!(line.ends_with("grants: nothing"), "{line}");
    }
    let lock = fs::read_to_string(run.join("plugins.lock")).unwrap();
    assert_eq!(lock.matches("sha256:").count(), 4, "{lock}");
    // Another run can insist on the very components of this one.
    let again = TempDir::new().unwrap();
    example("weights", &run_in(&again), &["--plugins.lock", path(&run.join("plugins.lock"))]);
    let other = molt()
        .args(short_run(&again.path().join("other")))
        .args(["--plugins.lock", path(&run.join("plugins.lock")), "--algo.estimator", "reinforce"])
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    assert!(text(&other).contains("reinforce"), "{}", text(&other));
}

#[test]
fn a_reward_that_sees_the_group() {
    let dir = TempDir::new().unwrap();
    let run = run_in(&dir);
    example("group", &run, &[]);
    for line in metrics(&run) {
        // n answers of a group of which d are distinct have d/n of the bonus on average.
        let (bonus, distinct) = (&line["reward/novelty"], &line["plugin/distinct_answers"]);
        assert!((bonus.as_f64().unwrap() - distinct.as_f64().unwrap()).abs() < 1e-9, "{line}");
        assert!(bonus.as_f64().unwrap() > 0.0);
    }
}

#[test]
fn an_environment_that_rewards_turns() {
    let dir = TempDir::new().unwrap();
    let run = run_in(&dir);
    example("turns", &run, &[]);
    for line in metrics(&run) {
        assert_eq!(line["reward/quiz"], line["rollout/reward_mean"]);
    }
}

#[test]
fn a_python_that_the_model_may_call() {
    let dir = TempDir::new().unwrap();
    let run = run_in(&dir);
    let output = example("python", &run, &["--model.path", path(&roomy_model(dir.path()))]);
    assert!(text(&output).contains("grants: runs code in python"), "{}", text(&output));
    for line in metrics(&run) {
        assert_eq!(line["reward/python-math"], line["rollout/reward_mean"]);
        assert!(line["plugin/turns"].as_f64().unwrap() >= 1.0, "{line}");
    }
    // The interpreter is a component of the run like any other.
    let lock = fs::read_to_string(run.join("plugins.lock")).unwrap();
    assert!(lock.contains("python-math") && lock.contains("\"python\""), "{lock}");
}

/// Answers every request for a chat completion with a grade, until the test ends.
fn grader() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || answer(&mut stream));
        }
    });
    url
}

/// Grade 10 for a long request, 2 for others, on one connection after another.
fn answer(stream: &mut TcpStream) -> Option<()> {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
    assert!(body.contains("The reference answer"), "{body}");
    let grade = if body.len() % 2 == 0 { 10 } else { 2 };
    let reply = format!(
        "{{\"choices\": [{{\"message\": {{\"role\": \"assistant\", \"content\": \"So.\\nGrade: {grade}\"}}, \
         \"finish_reason\": \"stop\"}}]}}"
    );
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{reply}", reply.len()).ok()
}

#[test]
fn a_judge_behind_an_endpoint() {
    let dir = TempDir::new().unwrap();
    let run = run_in(&dir);
    let output = example("judge", &run, &["--judge.url", &grader()]);
    assert!(text(&output).contains("grants: asks the judge 2 times"), "{}", text(&output));
    let grades: Vec<f64> =
        metrics(&run).iter().map(|line| line["plugin/judge_grade"].as_f64().unwrap()).collect();
    assert!(grades.iter().all(|grade| (2.0..=10.0).contains(grade)), "{grades:?}");
    let components = json(&run.join("components.json"));
    let judge =
        components["plugins"].as_array().unwrap().iter().find(|plugin| plugin["name"] == "judge").unwrap();
    assert_eq!((&judge["grants"]["model"], &judge["grants"]["model_calls"]), (&"judge".into(), &2.into()));
}

#[test]
fn grants_that_do_not_fit_are_refused_or_told() {
    let refused = |extra: &[&str], parts: &[&str]| {
        let dir = TempDir::new().unwrap();
        let output = molt().args(short_run(&run_in(&dir))).args(extra).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        for part in parts {
            assert!(text(&output).contains(part), "{part}: {}", text(&output));
        }
        assert!(!run_in(&dir).exists());
    };
    refused(
        &["--plugins.grant.exact-mach.real_clock", "true"],
        &["plugins.grant.exact-mach", "did you mean exact-match?"],
    );
    refused(&["--reward.name", "judge"], &["molt:plugin/model", "grant"]);
    refused(&["--reward.name", "judge", "--plugins.grant.judge.model", "judge"], &["judge.url"]);
    refused(&["--plugins.grant.exact-match.http", "example.org"], &["plugins.grant.exact-match.http"]);
    refused(&["--reward.name", "exact-match,math", "--reward.weight", "1"], &["reward.weight"]);

    let dir = TempDir::new().unwrap();
    let output = molt()
        .args(short_run(&run_in(&dir)))
        .args(["--plugins.grant.exact-match.model", "policy", "--train.max_steps", "1"])
        .output()
        .unwrap();
    assert_ok(&output);
    assert!(
        text(&output).contains("warning: plugins.grant.exact-match.model is of no use"),
        "{}",
        text(&output)
    );
}
