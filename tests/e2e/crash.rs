//! A killed process leaves a directory from which one can read what happened.

use molt_tests::{json, metrics, molt, short_run};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn kill_at_any_moment() {
    for steps_before_the_kill in [0, 1, 3] {
        let dir = TempDir::new().unwrap();
        let run = dir.path().join("run");
        let mut child = molt()
            .args(short_run(&run))
            .args(["--train.max_steps", "100000", "--data.passes", "100000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
            // The last of the files that a run begins with.
            let begun = run.join("components.json").exists();
            if begun && text.matches('\n').count() >= steps_before_the_kill {
                break;
            }
            assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
            assert!(Instant::now() < deadline, "no step in two minutes");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let status = json(&run.join("status.json"));
        assert_eq!(status["state"], "running");
        assert_eq!(status["pid"], child.id());
        assert!(std::fs::read_to_string(run.join("settings.toml")).unwrap().contains("exact-match"));
        let components = std::fs::read_to_string(run.join("components.json")).unwrap();
        assert!(components.contains("sha256:"), "{components}");
        if steps_before_the_kill > 0 {
            let lines = metrics(&run);
            assert!(lines.len() >= steps_before_the_kill);
            assert_eq!(lines[0]["step"], 1);
            assert!(lines[0]["rollout/reward_mean"].is_number(), "{}", lines[0]);
        }
    }
}
