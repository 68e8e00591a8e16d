//! What is written in another language than Rust trains: a reward, an environment and an estimator of each.

#[path = "../../host/author/tests/kept/mod.rs"]
mod kept;

use molt_tests::{assert_ok, json, metrics, molt, path, roomy_model, root, short_run};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

fn component(kind: &str, language: &str) -> String {
    kept::component(kind, language, &root().join("host/author/src/build"), |args, dir| {
        let mut command = molt();
        command.arg("plugin").args(args).current_dir(dir).env("CARGO_TARGET_DIR", kept::place("projects"));
        assert_ok(&command.output().unwrap());
    })
}

/// Trains with the components of one language, and gives the mean reward and the gradient of every step.
fn train(language: &str, model: &Path) -> Vec<[f64; 2]> {
    let [reward, environment, estimator] =
        ["reward", "environment", "estimator"].map(|kind| component(kind, language));
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let output = molt()
        .args(short_run(&run))
        .args(["--model.path", path(model), "--train.max_steps", "2", "--train.sync", "true"])
        .args(["--agent.name", &environment, "--agent.max_turns", "3"])
        .args(["--reward.name", &reward, "--algo.estimator", &estimator])
        .output()
        .unwrap();
    assert_ok(&output);
    assert_eq!(json(&run.join("summary.json"))["steps"], 2);
    let components = json(&run.join("components.json"));
    let names: Vec<String> = components["plugins"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plugin| plugin["name"].as_str().unwrap().to_owned())
        .collect();
    for kind in ["reward", "environment", "estimator"] {
        assert!(names.iter().any(|name| name.starts_with(&format!("{language}-{kind}-"))), "{names:?}");
    }
    let lines = metrics(&run);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        let reward = |kind| {
            line.as_object()
                .unwrap()
                .iter()
                .find(|(name, _)| name.starts_with(&format!("reward/{language}-{kind}-")))
        };
        assert!(["reward", "environment"].iter().all(|kind| reward(kind).is_some()), "{line}");
    }
    let of = |line: &Value, name: &str| line[name].as_f64().unwrap();
    lines.iter().map(|line| ["rollout/reward_mean", "train/grad_norm"].map(|name| of(line, name))).collect()
}

#[test]
fn components_of_every_language_train_alike() {
    let dir = TempDir::new().unwrap();
    let model = roomy_model(dir.path());
    let expected = train("rust", &model);
    assert!(expected.iter().all(|[reward, gradient]| *reward != 0.0 && *gradient > 0.0), "{expected:?}");
    for language in &kept::LANGUAGES[1..] {
        // What the components give is the same to the last bit; gradients are added up in any order.
        for (step, expected) in train(language, &model).iter().zip(&expected) {
            assert_eq!(step[0], expected[0], "{language}");
            assert!((step[1] - expected[1]).abs() < 1e-6, "{language}: {step:?}, not {expected:?}");
        }
    }
}
