//! Models beside the policy, each by its own process or processes: a reference, a critic, a teacher.

use molt_tests::{
    agree, assert_ok, length_reward, metrics, molt, numbers, path, root, short_run, text, tiny_model,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A synchronous run with a learning rate that moves the model; later flags win. What it printed.
fn train(run: &Path, more: &[&str]) -> String {
    let mut command = molt();
    command.args(short_run(run)).args(["--train.sync", "true", "--optim.lr", "5e-3"]).args(more);
    let output = command.output().unwrap();
    assert_ok(&output);
    text(&output)
}

#[test]
fn a_reference_holds_the_policy_on_one_rank_and_on_two() {
    let dir = TempDir::new().unwrap();
    let length = length_reward(dir.path());
    let names = ["train/loss", "train/grad_norm", "train/kl_reference", "algo/kl_coef"];
    let run = |nproc: &str, coef: &str| {
        let run = dir.path().join(format!("{nproc}-{coef}"));
        let kl = ["--algo.kl.coef", coef, "--algo.kl.target", "1e-6", "--algo.kl.horizon", "16"];
        let said = train(&run, &[&["--reward.name", path(&length), "--nproc", nproc], &kl[..]].concat());
        assert!(said.contains(&format!("reference {}", tiny_model().display())), "{said}");
        numbers(&run, &names)
    };
    let found = run("1", "0.5");
    // The policy begins at its reference and leaves it; the weight goes down, and then up. A batch is a horizon.
    assert!(found[2].abs() < 1e-9 && found[10] > 1e-4, "{found:?}");
    assert_eq!([found[3], found[7], found[11]].map(|coef| (coef * 1e9).round() / 1e9), [0.5, 0.4, 0.48]);
    agree(&run("2", "0.5"), &found, 1e-4);
    // All models compute in the same numbers, so at its reference the policy is none other.
    let half = dir.path().join("half");
    let more = ["--reward.name", path(&length), "--algo.kl.coef", "0.5", "--model.compute", "bfloat16"];
    train(&half, &[&more[..], &["--train.max_steps", "1"]].concat());
    assert!(numbers(&half, &["train/kl_reference"])[0].abs() < 1e-9);
    let free = run("1", "1e-9");
    assert!(found[10] < free[10], "{} is not below {}: it is not held", found[10], free[10]);
}

/// Also the weight of the divergence, and on other numbers of ranks.
#[test]
fn a_critic_and_its_checkpoint_go_on() {
    let dir = TempDir::new().unwrap();
    let length = length_reward(dir.path());
    let names = [
        "critic/loss",
        "critic/grad_norm",
        "critic/value_mean",
        "critic/clip_fraction",
        "train/kl_reference",
        "algo/kl_coef",
        "train/grad_norm",
    ];
    let run = |name: &str, nproc: &str, steps: &str| {
        let run = dir.path().join(name);
        let said = train(
            &run,
            &[
                &["--reward.name", path(&length), "--algo.estimator", "gae", "--train.max_steps", steps][..],
                &["--algo.kl.coef", "0.1", "--algo.kl.in", "reward", "--algo.kl.target", "1e-6"],
                &["--algo.kl.horizon", "160", "--critic.passes", "2", "--critic.optim.lr", "3e-3"],
                &["--critic.warmup_steps", "1", "--generator.max_sequences", "1", "--nproc", nproc],
                &["--ckpt.every", "2", "--ckpt.load", path(&run)],
            ]
            .concat(),
        );
        assert!(said.contains("critic    from"), "{said}");
        run
    };
    let whole = run("whole", "1", "6");
    run("parts", "2", "2");
    run("parts", "3", "4");
    let parts = run("parts", "1", "6");
    let found = numbers(&parts, &names);
    // The first of the six steps trains the critic alone.
    assert_eq!(found.len(), 5 * names.len());
    agree(&found, &numbers(&whole, &names), 1e-4);
    let lines = fs::read_to_string(whole.join("metrics.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(first["critic/loss"].as_f64().unwrap() > 0.0 && first.get("train/loss").is_none(), "{first}");
}

/// A larger model of the same tokenizer, which likes some tokens much better than others. It has no chat template.
fn teacher(dir: &Path) -> PathBuf {
    let (source, model) = (dir.join("source"), dir.join("teacher"));
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text = fs::read_to_string(root().join("examples/demo/model").join(file)).unwrap();
        let text = text.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
        fs::write(
            source.join(file),
            text.replace("\"initializer_range\": 0.05", "\"initializer_range\": 0.2"),
        )
        .unwrap();
    }
    assert_ok(&molt().args(["init", path(&source), path(&model), "--seed", "5"]).output().unwrap());
    let file = model.join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("chat_template").expect("a template");
    fs::write(file, config.to_string()).unwrap();
    assert!(!model.join("chat_template.jinja").exists());
    model
}

#[test]
fn a_teacher_is_one_switch_and_no_reward() {
    let dir = TempDir::new().unwrap();
    let teacher = teacher(dir.path());
    let run = |nproc: &str| {
        let run = dir.path().join(nproc);
        let mut args = short_run(&run);
        let reward = args.iter().position(|arg| arg == "--reward.name").unwrap();
        args.drain(reward..reward + 2);
        let more = ["--teacher.model", path(&teacher), "--train.sync", "true", "--optim.lr", "5e-3"];
        let output = molt().args(args).args(more).args(["--nproc", nproc]).output().unwrap();
        assert_ok(&output);
        assert!(text(&output).contains(&format!("teacher   {}", teacher.display())), "{}", text(&output));
        // What is learnt is shown, and no reward that there is not.
        assert!(text(&output).contains(" kl ") && !text(&output).contains("reward 0"), "{}", text(&output));
        let curves = fs::read_to_string(run.join("curves.svg")).unwrap();
        assert!(curves.contains("Divergence from the teacher") && !curves.contains("Accuracy"), "{curves}");
        let settings = fs::read_to_string(run.join("settings.toml")).unwrap();
        assert!(settings.contains("estimator = \"on-policy-distill\""), "{settings}");
        assert!(settings.contains("\n# algo.clip_low = 0.2\n"), "{settings}");
        run
    };
    let whole = run("1");
    let kl = numbers(&whole, &["train/kl_reference"]);
    assert!(kl.len() == 3 && kl.iter().all(|kl| *kl > 0.1), "{kl:?}");
    assert_eq!(numbers(&whole, &["algo/kl_coef"]), [1.0; 3]);
    assert!(metrics(&whole).iter().all(|line| line.get("rollout/reward_mean").is_none()));
    let names = ["train/loss", "train/grad_norm", "train/kl_reference"];
    agree(&numbers(&run("2"), &names), &numbers(&whole, &names), 1e-4);
}
