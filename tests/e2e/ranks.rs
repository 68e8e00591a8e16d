//! `--nproc N` and launchers of others: ranks train what one process trains, and a lost one ends the run.

use molt_tests::{
    agree, assert_ok, json, length_reward, molt, numbers, path, peer, plugins, root, short_run, skipped,
    text, tiny_model,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn ranks_learn_what_one_process_learns() {
    let dir = TempDir::new().unwrap();
    let run = |nproc: &str, more: &[&str]| {
        let run = dir.path().join(nproc);
        let output = molt()
            .args(["sft", "--nproc", nproc, "--model.path", path(tiny_model()), "--run.dir", path(&run)])
            .args([
                "--data.conversations",
                "examples/demo/sft.jsonl",
                "--sft.passes",
                "2",
                "--optim.lr",
                "1e-3",
            ])
            .args(more)
            .output()
            .unwrap();
        assert_ok(&output);
        (numbers(&run, &["train/loss", "train/grad_norm"]), text(&output))
    };
    let (expected, _) = run("1", &[]);
    assert_eq!(expected.len(), 2 * 6);
    // Three ranks share the two layers and the uneven vocabulary, and keep the graph of one layer.
    // Of four, two share the tokens of a row and two the heads.
    for (nproc, more) in [
        ("2", &["--fsdp.keep_layers", "0", "--fsdp.prefetch", "false"][..]),
        ("3", &["--fsdp.keep_layers", "1"]),
        ("4", &["--fsdp.context_parallel", "2", "--fsdp.tensor_parallel", "2"]),
    ] {
        let (found, said) = run(nproc, more);
        agree(&found, &expected, 1e-5);
        assert!(said.contains(&format!("ranks     rank 0 of {nproc} at 127.0.0.1:")), "{said}");
        // The model that rank 0 saves is whole.
        let model = dir.path().join(nproc).join("model");
        assert!(model.join("model.safetensors").is_file() && model.join("config.json").is_file());
    }
}

#[test]
fn rollouts_are_trained_on_by_all_ranks() {
    let dir = TempDir::new().unwrap();
    let length = length_reward(dir.path());
    let run = |nproc: &str| {
        let run = dir.path().join(nproc);
        let output = molt()
            .args(short_run(&run))
            .args(["--nproc", nproc, "--train.sync", "true", "--train.max_steps", "2"])
            .args(["--reward.name", path(&length)])
            .output()
            .unwrap();
        assert_ok(&output);
        assert_eq!(json(&run.join("summary.json"))["steps"], 2);
        let gaps = numbers(&run, &["train/logprob_gap_max"]);
        assert!(gaps.iter().all(|gap| *gap < 1e-5), "{gaps:?}");
        numbers(&run, &["train/loss", "train/grad_norm", "train/tokens", "train/on_policy_tokens"])
    };
    let expected = run("1");
    assert!(expected[1] > 0.0, "there is something to learn");
    agree(&run("2"), &expected, 1e-5);
}

/// A mixture of experts from `molt init`, whose experts two ranks share.
#[test]
fn experts_are_shared_by_ranks() {
    let dir = TempDir::new().unwrap();
    let length = length_reward(dir.path());
    let (source, model) = (dir.path().join("source"), dir.path().join("model"));
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text = fs::read_to_string(root().join("examples/demo/model").join(file)).unwrap();
        let mixture = text.replace(
            "\"model_type\": \"llama\",",
            "\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"num_experts_per_tok\": 2, \
             \"moe_intermediate_size\": 48, \"norm_topk_prob\": true,",
        );
        fs::write(source.join(file), mixture.replace("LlamaForCausalLM", "Qwen3MoeForCausalLM")).unwrap();
    }
    assert_ok(&molt().args(["init", path(&source), path(&model), "--seed", "1"]).output().unwrap());
    let run = |nproc: &str, experts: &str| {
        let run = dir.path().join(nproc);
        let output = molt()
            .args(short_run(&run))
            .args(["--model.path", path(&model), "--reward.name", path(&length)])
            .args(["--nproc", nproc, "--fsdp.expert_parallel", experts, "--moe.router_aux_coef", "0.01"])
            .args(["--train.sync", "true", "--train.replay_routing", "true", "--train.max_steps", "2"])
            .output()
            .unwrap();
        assert_ok(&output);
        assert!(text(&output).contains("qwen3_moe"), "{}", text(&output));
        let gaps = numbers(&run, &["train/logprob_gap_max"]);
        assert!(gaps.iter().all(|gap| *gap < 1e-4), "{gaps:?}");
        numbers(&run, &["train/loss", "train/grad_norm", "train/tokens", "train/on_policy_tokens"])
    };
    let expected = run("1", "1");
    assert!(expected.len() == 8 && expected[1] > 0.0, "there is something to learn");
    agree(&run("2", "2"), &expected, 1e-5);
}

/// A run of two ranks that goes on until it is ended.
fn endless(run: &Path, more: &[&str]) -> Child {
    let child = molt()
        .args(short_run(run))
        .args(more)
        .args(["--nproc", "2", "--train.max_steps", "100000", "--data.passes", "100000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("step", || fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default().contains('\n'));
    child
}

#[track_caller]
fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_there() {
        assert!(Instant::now() < deadline, "no {what} in two minutes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes that `parent` started, in order.
fn children(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Waits until a process is no more, though nobody here is its parent.
#[track_caller]
fn gone(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    // What nobody waited for has no command line any more.
    while fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < deadline, "process {pid} goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_run() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let child = endless(&run, &[]);
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 2);
    kill("-9", ranks[1]);
    let output = ended(child);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(137), "{said}");
    assert!(said.contains("rank 1 of 2 is lost (signal: 9 (SIGKILL))"), "{said}");
    let status = json(&run.join("status.json"));
    assert_eq!(status["state"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("failed on rank 0 of 2"), "{status}");
    gone(ranks[0]);
}

#[test]
fn a_rank_that_hangs_ends_the_run_in_time() {
    for hangs in [1, 0] {
        let dir = TempDir::new().unwrap();
        let run = dir.path().join("run");
        let child = endless(&run, &["--fsdp.timeout_s", "8"]);
        let ranks = children(child.id());
        kill("-STOP", ranks[hangs]);
        let output = ended(child);
        let said = text(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(&format!("rank {hangs} of 2 does not answer any more")), "{said}");
        ranks.into_iter().for_each(gone);
    }
}

/// What a process said that ends by itself. One that does not is killed after a time in which it should have by far.
#[track_caller]
fn ended(child: Child) -> Output {
    let (pid, (tell, told)) = (child.id(), std::sync::mpsc::channel());
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    told.recv_timeout(Duration::from_secs(180)).map(Result::unwrap).unwrap_or_else(|_| {
        kill("-9", pid);
        panic!("process {pid} does not end")
    })
}

/// The thread that trains is stuck, as on a file system that hangs, and the process goes on to say that it lives. Each
/// rank looks for the checkpoint where it is itself, and one finds a pipe there that nobody writes to.
#[test]
fn a_rank_whose_work_hangs_is_named_with_its_collective() {
    let dir = TempDir::new().unwrap();
    let [here, there] = ["here", "there"].map(|name| dir.path().join(name));
    let data = root().join("examples/demo/train.jsonl");
    let more = ["--data.prompts", path(&data), "--ckpt.every", "1", "--train.max_steps", "1"];
    fs::create_dir(&here).unwrap();
    let first = molt().args(short_run(Path::new("first"))).args(more).current_dir(&here).output().unwrap();
    assert_ok(&first);
    let checkpoint = "first/checkpoints/step-000001";
    fs::create_dir_all(there.join(checkpoint)).unwrap();
    let pipe = there.join(checkpoint).join("part-0-of-1.safetensors");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (port, run) = (free_port(), dir.path().join("run"));
    let start = |number: &str, place: &Path| {
        let mut rank = rank(number, port, &run);
        rank.args(more).args(["--ckpt.load", "first", "--train.max_steps", "2", "--fsdp.timeout_s", "8"]);
        rank.current_dir(place).spawn().unwrap()
    };
    let (follower, leader) = (start("1", &there), start("0", &here));
    let said = text(&ended(leader));
    assert!(said.contains("rank 1 of 2 hangs: its process lives, and the last collective"), "{said}");
    assert!(said.contains("all-gather of"), "{said}");
    let reason = &json(&run.join("status.json"))["reason"];
    assert!(reason.as_str().unwrap().contains("rank 1 of 2 hangs"), "{reason}");
    // Stuck as it is, it ends too.
    assert!(!ended(follower).status.success());
}

#[test]
fn ranks_do_not_outlive_their_launcher() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let child = endless(&run, &[]);
    let ranks = children(child.id());
    kill("-9", child.id());
    ranks.into_iter().for_each(gone);
    assert!(child.wait_with_output().unwrap().status.code().is_none());
    assert_eq!(json(&run.join("status.json"))["state"], "failed");
}

/// Nobody serves what a rank would wait for, and whoever reads what it prints would wait with it.
#[test]
fn a_rank_whose_launcher_is_gone_before_they_meet_ends_at_once() {
    let dir = TempDir::new().unwrap();
    let mut orphan = rank("1", free_port(), &dir.path().join("run"));
    let output =
        orphan.env("MOLT_LAUNCHER", "1").env("TORCHELASTIC_USE_AGENT_STORE", "True").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("the launcher of this rank is gone"), "{}", text(&output));
}

#[test]
fn ctrl_c_ends_all_ranks_with_the_model_saved() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let child = endless(&run, &[]);
    let ranks = children(child.id());
    for pid in [child.id(), ranks[0], ranks[1]] {
        kill("-INT", pid);
    }
    let output = ended(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert_eq!(json(&run.join("status.json"))["state"], "interrupted");
    assert!(run.join("model/model.safetensors").is_file());
}

/// A rank as another launcher starts it.
fn rank(rank: &str, port: u16, run: &Path) -> Command {
    let mut command = molt();
    command.args(short_run(run)).args(["--train.max_steps", "1", "--fsdp.timeout_s", "60"]);
    command.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
    command.env("MASTER_PORT", port.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn the_variables_of_a_launcher_are_enough() {
    let dir = TempDir::new().unwrap();
    let (run, port) = (dir.path().join("run"), free_port());
    let follower = rank("1", port, &run).spawn().unwrap();
    assert_ok(&rank("0", port, &run).output().unwrap());
    assert_ok(&follower.wait_with_output().unwrap());
    assert_eq!(json(&run.join("summary.json"))["steps"], 1);
}

/// By PyTorch's launcher, whose agent serves the store, and starts both ranks again when one is lost: in the same store.
#[test]
fn torchrun_starts_ranks_and_starts_them_again() {
    let Some(peer) = peer() else {
        return skipped("torchrun", "`cargo xtask bench train` has not installed it");
    };
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let molt = molt();
    let mut torchrun = Command::new("python3");
    torchrun.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    torchrun.args(["--max-restarts", "1", "--monitor-interval", "0.1", "--no-python"]);
    torchrun.arg(molt.get_program()).args(short_run(&run));
    torchrun.args(["--train.max_steps", "60", "--data.passes", "100", "--fsdp.timeout_s", "60"]);
    torchrun.args(["--ckpt.every", "1", "--ckpt.load", path(&run)]);
    torchrun.env("PYTHONPATH", peer).current_dir(root()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = torchrun.spawn().unwrap();
    // One that is whole, and not only begun.
    let written =
        || run.join("checkpoints/step-000001").exists() || run.join("checkpoints/step-000002").exists();
    wait_for("checkpoint", written);
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 2);
    kill("-9", ranks[1]);
    let output = child.wait_with_output().unwrap();
    let said = text(&output);
    assert_ok(&output);
    assert_eq!(said.matches("ranks     rank 0 of 2 at").count(), 2, "{said}");
    assert!(said.contains("resume    after step"), "{said}");
    assert_eq!(json(&run.join("summary.json"))["steps"], 60);
}

/// Processes that end with the test.
struct Daemons(Vec<Child>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in &mut self.0 {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A cluster of this machine alone, of whoever runs the test. None if Slurm is not installed, or does not start.
fn slurm(dir: &Path) -> Option<(Daemons, PathBuf)> {
    let said = |command: &str| {
        let output = Command::new("sh").args(["-c", command]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let find = |name: &str| said(&format!("PATH=$PATH:/usr/sbin:/sbin command -v {name}"));
    let (controller, node, _) = (find("slurmctld")?, find("slurmd")?, find("srun")?);
    let (host, user, place) = (said("hostname")?, said("id -un")?, path(dir));
    let conf = dir.join("slurm.conf");
    let text = format!(
        "ClusterName=one\nSlurmctldHost={host}\nSlurmctldPort={}\nSlurmdPort={}\nSlurmUser={user}\nSlurmdUser={user}\n\
         AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\n\
         SelectType=select/cons_tres\nStateSaveLocation={place}\nSlurmdSpoolDir={place}\n\
         SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/slurmd.pid\n\
         NodeName={host} CPUs=1 State=UNKNOWN\nPartitionName=all Nodes={host} Default=YES State=UP\n",
        free_port(),
        free_port()
    );
    fs::write(&conf, text).unwrap();
    let start = |program: &str| {
        let mut daemon = Command::new(program);
        daemon.arg("-D").env("SLURM_CONF", &conf).stdout(Stdio::null()).stderr(Stdio::null());
        daemon.spawn().unwrap()
    };
    let daemons = Daemons(vec![start(&controller), start(&node)]);
    let idle = format!("SLURM_CONF={} sinfo --noheader --format %T", path(&conf));
    let deadline = Instant::now() + Duration::from_secs(20);
    while said(&idle).as_deref() != Some("idle") {
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Some((daemons, conf))
}

#[test]
fn srun_starts_ranks() {
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("slurm");
    fs::create_dir(&place).unwrap();
    let Some((_daemons, conf)) = slurm(&place) else {
        return skipped("srun", "Slurm is not installed, or does not start here");
    };
    let (run, molt) = (dir.path().join("run"), molt());
    let mut srun = Command::new("srun");
    srun.args(["--ntasks", "2", "--overcommit"]).arg(molt.get_program()).args(short_run(&run));
    srun.env("SLURM_CONF", conf).env("MASTER_PORT", free_port().to_string()).current_dir(root());
    let output = srun.output().unwrap();
    assert_ok(&output);
    assert!(text(&output).contains("rank 0 of 2 at"), "{}", text(&output));
    assert!(text(&output).contains("by a Slurm step"), "{}", text(&output));
    assert_eq!(json(&run.join("summary.json"))["steps"], 3);
}

#[test]
fn ranks_that_would_train_something_else_are_refused() {
    let dir = TempDir::new().unwrap();
    let (run, port) = (dir.path().join("run"), free_port());
    let follower = rank("1", port, &run).args(["--optim.lr", "1e-4"]).spawn().unwrap();
    let leader = rank("0", port, &run).output().unwrap();
    let follower = follower.wait_with_output().unwrap();
    let said = text(&follower);
    assert!(!follower.status.success() && !leader.status.success(), "{said}{}", text(&leader));
    assert!(said.contains("rank 1 and rank 0 differ in their settings"), "{said}");

    let alone = rank("0", port, &run).env_remove("WORLD_SIZE").output().unwrap();
    let said = text(&alone);
    assert!(said.contains("RANK is set, and WORLD_SIZE is not"), "{said}");
}

/// Two machines with the same command line, each with files of its own.
#[test]
fn ranks_with_other_files_are_refused() {
    let dir = TempDir::new().unwrap();
    let places = ["here", "there"].map(|name| dir.path().join(name));
    let (length, other) = (length_reward(dir.path()), plugins()[0].join("exact-match.wasm"));
    let prompts = fs::read_to_string(root().join("examples/demo/train.jsonl")).unwrap();
    for place in &places {
        fs::create_dir_all(place.join("model")).unwrap();
        for file in fs::read_dir(tiny_model()).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), place.join("model").join(file.file_name())).unwrap();
        }
        fs::write(place.join("data.jsonl"), &prompts).unwrap();
        fs::copy(&length, place.join("length.wasm")).unwrap();
    }
    let run = |nth: u32| {
        let (port, run) = (free_port(), dir.path().join(format!("run-{nth}")));
        let of = |number: &str, place: &Path| {
            let mut rank = rank(number, port, &run);
            rank.args(["--model.path", "model", "--data.prompts", "data.jsonl"]);
            rank.args(["--reward.name", "length.wasm"]).current_dir(place);
            rank
        };
        let follower = of("1", &places[1]).spawn().unwrap();
        let leader = of("0", &places[0]).output().unwrap();
        (leader, follower.wait_with_output().unwrap())
    };
    let there = |file: &str| places[1].join(file);
    let refused = |nth: u32, what: &str| {
        let (leader, follower) = run(nth);
        let said = text(&follower);
        assert!(!follower.status.success() && !leader.status.success(), "{said}{}", text(&leader));
        assert!(said.contains(&format!("rank 1 and rank 0 differ in their {what}:")), "{said}");
    };
    fs::copy(other, there("length.wasm")).unwrap();
    refused(1, "reward length");
    fs::copy(&length, there("length.wasm")).unwrap();
    fs::write(there("data.jsonl"), prompts.lines().skip(1).collect::<Vec<_>>().join("\n")).unwrap();
    refused(2, "data");
    fs::write(there("data.jsonl"), &prompts).unwrap();
    let weights = there("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(3, "weights");
    // What a rank that follows does not read need not be there.
    fs::copy(places[0].join("model/model.safetensors"), weights).unwrap();
    fs::remove_file(there("data.jsonl")).unwrap();
    fs::remove_file(there("length.wasm")).unwrap();
    let (leader, follower) = run(4);
    assert_ok(&leader);
    assert_ok(&follower);
}
