use super::*;
use std::fs;

fn run(args: &[&str]) -> Result<Request, Refusal> {
    parse(["molt"].iter().chain(args).map(OsString::from))
}

fn refused(args: &[&str]) -> String {
    match run(args) {
        Err(Refusal::Settings(stop)) => {
            assert_eq!(stop.code, crate::stop::USER);
            stop.to_string()
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn train(args: &[&str]) -> TrainSettings {
    let required = ["train", "--model.path", "m", "--data.prompts", "p.jsonl", "--reward.name", "math"];
    match run(&[&required[..], args].concat()) {
        Ok(Request::Train(settings)) => *settings,
        other => panic!("expected settings, found {other:?}"),
    }
}

#[test]
fn clap_finds_no_fault_with_the_commands() {
    command(&[]).debug_assert();
}

#[test]
fn flags_of_every_kind_become_settings() {
    let settings = train(&[
        "--train.sync",
        "--data.shuffle=false",
        "--reward.lowest",
        "-1",
        "--eval.prompts=e.jsonl",
        "--eval.samples",
        "8",
        "--eval.k=1,8",
        "--plugins.only.math.cpu_ms",
        "500",
        "--plugins.only.my.agent.memory_mib=64",
        "--algo.importance",
        "old",
    ]);
    assert!(settings.train.sync && !settings.data.shuffle);
    assert_eq!(settings.reward.lowest, -1.0);
    assert_eq!((settings.eval.samples, settings.eval.k), (8, vec![1, 8]));
    assert_eq!(settings.plugins.only["math"].cpu_ms, Some(500));
    assert_eq!(settings.plugins.only["my.agent"].memory_mib, Some(64));
}

#[test]
fn a_later_flag_wins() {
    let settings = train(&["--train.sync", "--optim.lr", "1", "--optim.lr=2", "--train.sync=false"]);
    assert_eq!((settings.optim.lr, settings.train.sync), (2.0, false));
}

#[test]
fn flags_win_over_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("run.toml");
    fs::write(&file, "[train]\nasync_queue_size = 3\nmax_tokens_per_rank = 5\n").expect("writes");
    let config = file.to_str().expect("UTF-8");
    let settings = train(&["--config", config, "--train.async_queue_size", "4"]);
    assert_eq!((settings.train.async_queue_size, settings.train.max_tokens_per_rank), (4, 5));
}

#[test]
fn an_unknown_flag_names_the_nearest() {
    assert_eq!(
        refused(&["train", "--train.async_queue_sz", "2"]),
        "error: there is no setting train.async_queue_sz\n  help: did you mean --train.async_queue_size?"
    );
    assert_eq!(
        refused(&["sft", "--lr=1"]),
        "error: there is no setting lr\n  help: did you mean --optim.lr?"
    );
    assert_eq!(
        refused(&["eval", "--zzzzzzzz"]),
        "error: there is no setting zzzzzzzz\n  help: `molt eval --help` lists every setting"
    );
    let truncated = refused(&["train", "--rollout.top_p", "0.9"]);
    assert!(
        truncated.starts_with("error: rollout.top_p is no setting: training samples from the whole"),
        "{truncated}"
    );
}

#[test]
fn an_unknown_key_of_a_file_names_file_line_and_nearest() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("run.toml");
    fs::write(&file, "[train]\nasync_queue_sz = 3\n").expect("writes");
    let config = file.to_str().expect("UTF-8");
    assert_eq!(
        refused(&["train", "--config", config, "--optim.lr", "fast"]),
        format!(
            "error: these settings cannot be used\n  because {config}:2: there is no setting \
             train.async_queue_sz; did you mean train.async_queue_size?\n  because --optim.lr: optim.lr is \
             \"fast\", but must be a number\n  help: `molt train --help` lists every setting"
        )
    );
}

#[test]
fn all_problems_are_told_at_once() {
    assert_eq!(
        refused(&["train", "--rollout.temperature", "0", "--algo.importance", "old"]),
        "error: these settings cannot be used\n  \
         because model.path is required: a Hugging Face model directory\n  \
         because data.prompts is required: a file with one JSON object per line\n  \
         because reward.name is required with agent.name single-turn, which gives no reward: name a reward plugin, \
         such as math\n  \
         because rollout.temperature is 0, but must be from 0.01 to 100\n  \
         because algo.importance is old, but with train.async_queue_size 1 tokens of older weights are trained, \
         which needs a correction: set algo.correction.level, or use algo.importance sampled, or train.sync \
         without replay\n  help: `molt train --help` lists every setting"
    );
}

#[test]
fn a_run_has_one_file_of_settings() {
    assert_eq!(
        refused(&["train", "--config", "a.toml", "--config=b.toml"]),
        "error: --config is given 2 times, and a run has one file of settings\n  help: put all into one file, or give \
         what differs as flags, which win over it"
    );
}

#[test]
fn a_missing_file_of_settings_is_told() {
    assert_eq!(
        refused(&["train", "--config", "/nonexistent/run.toml"]),
        "error: cannot read the settings in /nonexistent/run.toml\n  because No such file or directory (os error \
         2)\n  help: give --config a TOML file"
    );
}

#[test]
fn help_shows_every_setting_with_its_default() {
    let Err(Refusal::Usage(error)) = run(&["train", "--help"]) else { panic!("expected help") };
    assert!(!error.use_stderr());
    let help = error.to_string();
    for key in keys::<TrainSettings>() {
        assert!(help.contains(&format!("--{} ", key.name())), "{} is missing", key.name());
    }
    let words: Vec<&str> = help.split_whitespace().collect();
    let help = words.join(" ");
    assert!(help.contains("--algo.importance <sampled|old> What a token's probability"), "{help}");
    assert!(help.contains("0 waits for every update. [default: 1]"), "{help}");
}

#[test]
fn the_other_commands() {
    let init = run(&["init", "from", "to", "--seed", "7"]).expect("parses");
    assert_eq!(init, Request::Init { from: "from".into(), to: "to".into(), seed: 7 });
    let Ok(Request::Plugin(plugin)) = run(&["plugin", "inspect", "grpo@0.1"]) else { panic!("parses") };
    assert_eq!(plugin.subcommand_name(), Some("inspect"));
    assert!(matches!(run(&["plugin", "inspect"]), Err(Refusal::Usage(error)) if error.use_stderr()));
    assert!(matches!(run(&[]), Err(Refusal::Usage(error)) if error.use_stderr()));
    assert!(matches!(run(&["init", "from"]), Err(Refusal::Usage(error)) if error.use_stderr()));
}

#[test]
fn several_ranks_have_the_command_without_nproc() {
    let command = |nproc: &[&str]| {
        let all =
            ["molt", "sft", "--model.path", "m"].iter().chain(nproc).chain(&["--data.conversations", "c"]);
        parse(all.map(OsString::from)).expect("a request")
    };
    for nproc in [&["--nproc", "3"][..], &["--nproc=3"], &["--nproc", "2", "--nproc", "3"]] {
        let Request::Launch { ranks: 3, args } = command(nproc) else { panic!("{:?}", command(nproc)) };
        assert_eq!(args, ["sft", "--model.path", "m", "--data.conversations", "c"]);
    }
    assert!(matches!(command(&["--nproc", "1"]), Request::Sft(_)));
}
