//! Checkpoints: a run that was ended in whatever way goes on as if it had not been.

use molt_tests::{
    assert_ok, json, length_reward, metrics, molt, numbers, path, plugins, root, run, short_run, skipped,
    text, tiny_model,
};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `molt sft` on the tiny model: 6 steps of 16 conversations in a pass.
fn sft(dir: &Path, more: &[&str]) -> Command {
    let mut command = molt();
    command.args(["sft", "--model.path", path(tiny_model()), "--run.dir", path(dir)]);
    command.args(["--data.conversations", "examples/demo/sft.jsonl", "--sft.batch_size", "16"]);
    command.args(["--optim.lr", "1e-3"]).args(more);
    command
}

/// The settings that have a run in `dir` write checkpoints and go on from them.
fn in_place(dir: &Path) -> [&str; 4] {
    ["--ckpt.every", "1", "--ckpt.load", path(dir)]
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_ok(output);
    text(output)
}

#[track_caller]
fn refused(output: &Output, with: &[&str]) {
    let said = text(output);
    assert!(!output.status.success(), "{said}");
    for part in with {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("model/model.safetensors")).unwrap()
}

/// The values of the only weights file of a run.
fn values(run: &Path) -> Vec<f32> {
    let bytes = weights(run);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The metrics of the optimiser steps of a run, without those of evaluations alone.
fn steps(run: &Path) -> Vec<serde_json::Value> {
    metrics(run).into_iter().filter(|line| !line["train/loss"].is_null()).collect()
}

/// The numbers of a run that do not depend on the clock.
fn learnt(run: &Path) -> Vec<(u64, f64, f64)> {
    let number = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap();
    steps(run)
        .iter()
        .map(|line| {
            (line["step"].as_u64().unwrap(), number(line, "train/loss"), number(line, "train/grad_norm"))
        })
        .collect()
}

/// What a run was trained on, step after step: the number of each group and the line of the data that it is of. From the
/// trajectories, which such a run keeps of every step.
fn trained(run: &Path) -> Vec<Vec<(u64, u64)>> {
    let groups = |step: u64| -> Vec<(u64, u64)> {
        let text = fs::read_to_string(run.join(format!("trajectories/step-{step:06}.md"))).unwrap();
        let heads = text.lines().filter_map(|line| line.strip_prefix("## Group ")?.split_once(", row "));
        heads.map(|(group, row)| (group.parse().unwrap(), row.parse().unwrap())).collect()
    };
    (1..=steps(run).len() as u64).map(groups).collect()
}

/// That these groups are of a run in which no prompt came twice.
#[track_caller]
fn each_once(trained: &[Vec<(u64, u64)>]) {
    let (groups, rows): (Vec<u64>, Vec<u64>) = trained.iter().flatten().copied().unzip();
    for mut of in [groups, rows] {
        of.sort_unstable();
        assert!(of.windows(2).all(|pair| pair[0] < pair[1]), "twice in {of:?}");
    }
}

/// Names of the checkpoints of a run, and of whatever else lies there.
fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Uniform numbers below a bound, the same in every test run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// How long a run takes that nobody kills: moments are drawn from it, since a bound in seconds would all lie
/// before the first checkpoint on a slow machine.
fn timed(mut command: Command) -> Duration {
    let start = Instant::now();
    done(&command.output().unwrap());
    start.elapsed()
}

/// Every process of a run: the launcher if there is one, and the ranks.
fn processes(of: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    std::iter::once(of).chain(text.split_whitespace().map(|pid| pid.parse().unwrap())).collect()
}

/// It may have ended by itself.
fn kill_9(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
}

/// Starts a run again and again and kills one of its processes at a random moment of the time that a whole one
/// `took`, then lets it end. Gives back how often it went on from a checkpoint.
fn killed_at_random(
    command: impl Fn() -> Command,
    kills: usize,
    took: Duration,
    random: &mut Random,
) -> usize {
    let mut resumed = 0;
    for _ in 0..kills {
        let child = command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(took.mul_f64(random.below(1000) as f64 / 1000.0));
        let all = processes(child.id());
        let victim = all[random.below(all.len() as u64) as usize];
        kill_9(victim);
        let output = child.wait_with_output().unwrap();
        resumed += usize::from(text(&output).contains("resume    after step"));
        // Ranks without their launcher end too, but a moment later, and hold nothing that the next run needs.
    }
    let said = done(&command().output().unwrap());
    resumed + usize::from(said.contains("resume    after step"))
}

#[test]
fn kill_9_at_random_moments_changes_nothing_of_supervised_training() {
    let dir = TempDir::new().unwrap();
    let (whole, broken) = (dir.path().join("whole"), dir.path().join("broken"));
    let more = ["--sft.passes", "10", "--optim.schedule", "cosine", "--optim.warmup_steps", "5"];
    let took = timed(sft(&whole, &more));
    let command = || {
        let mut command = sft(&broken, &more);
        command.args(in_place(&broken));
        command
    };
    let resumed = killed_at_random(command, 20, took, &mut Random(1));
    assert!(resumed > 2, "{resumed} of 20 kills came after a checkpoint");
    assert_eq!(learnt(&broken), learnt(&whole));
    assert!(weights(&broken) == weights(&whole), "the weights differ");
    let summary = |run: &Path| {
        let mut summary = json(&run.join("summary.json"));
        summary.as_object_mut().unwrap().remove("wall_s");
        summary
    };
    assert_eq!(summary(&broken), summary(&whole));
}

/// Sequences are decoded one by one, so that rounding does not depend on which ones meet in a batch.
fn rl(dir: &Path, reward: &Path, more: &[&str]) -> Command {
    let mut command = molt();
    command.args(short_run(dir)).args(["--reward.name", path(reward), "--generator.max_sequences", "1"]);
    command
        .args(["--train.max_steps", "12", "--optim.lr", "1e-3", "--log.trajectories_every", "1"])
        .args(more);
    command
}

#[test]
fn kill_9_at_random_moments_changes_nothing_of_reinforcement_learning() {
    let dir = TempDir::new().unwrap();
    let reward = length_reward(dir.path());
    let mut random = Random(2);
    for (nproc, kills) in [("1", 20), ("2", 10)] {
        let [whole, broken] = ["whole", "broken"].map(|name| dir.path().join(format!("{name}-{nproc}")));
        let more = ["--train.sync", "true", "--nproc", nproc];
        let took = timed(rl(&whole, &reward, &more));
        let command = || {
            let mut command = rl(&broken, &reward, &more);
            command.args(in_place(&broken));
            command
        };
        let resumed = killed_at_random(command, kills, took, &mut random);
        assert!(resumed > 2, "{resumed} of {kills} kills came after a checkpoint");
        assert_eq!(learnt(&broken), learnt(&whole));
        assert!(weights(&broken) == weights(&whole), "the weights differ on {nproc}");
        let found = trained(&broken);
        assert_eq!(found, trained(&whole));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4; 12]);
        each_once(&found);
    }
}

#[test]
fn curriculum_replay_buffer_and_best_model_survive_kills() {
    let dir = TempDir::new().unwrap();
    let (reward, data) = (length_reward(dir.path()), dir.path().join("some.jsonl"));
    let prompts = fs::read_to_string(root().join("examples/demo/train.jsonl")).unwrap();
    fs::write(&data, prompts.lines().take(8).collect::<Vec<_>>().join("\n")).unwrap();
    let [whole, broken, plain] = ["whole", "broken", "plain"].map(|name| dir.path().join(name));
    let more = ["--data.prompts", path(&data), "--data.passes", "6", "--train.async_queue_size", "0"];
    let again = ["--data.curriculum.easy_share", "0.5", "--data.curriculum.hard_share", "0.5"];
    let again = [&more[..], &again, &["--replay.groups_per_batch", "2", "--replay.capacity", "6"]].concat();
    let best = ["--eval.prompts", path(&data), "--train.eval_every", "2", "--train.keep_best", "reward_mean"];
    let again = [&again[..], &best].concat();
    let took = timed(rl(&whole, &reward, &again));
    let command = || {
        let mut command = rl(&broken, &reward, &again);
        command.args(in_place(&broken));
        command
    };
    let resumed = killed_at_random(command, 6, took, &mut Random(4));
    assert!(resumed > 0, "{resumed} of 6 kills came after a checkpoint");
    assert_eq!(learnt(&broken), learnt(&whole));
    assert!(weights(&broken) == weights(&whole), "the weights differ");
    assert_eq!(trained(&broken), trained(&whole));
    let best =
        |run: &Path| (json(&run.join("best/best.json")), fs::read(run.join("best/model/model.safetensors")));
    let [(of_broken, kept), (of_whole, expected)] = [best(&broken), best(&whole)];
    assert_eq!(of_broken, of_whole);
    assert!(kept.unwrap() == expected.unwrap(), "another model is the best");
    let steps = steps(&whole);
    let of = |name: &str| steps.iter().map(|line| line[name].as_f64().unwrap()).collect::<Vec<f64>>();
    assert_eq!(of("rollout/groups"), [4.0; 12], "as many fresh ones as ever");
    assert_eq!(of("replay/groups")[..3], [0.0, 2.0, 2.0]);
    assert_eq!(of("curriculum/unseen")[..2], [4.0, 0.0]);
    // Each by itself: the buffer trains more tokens of the same prompts, and the curriculum other prompts.
    done(&rl(&plain, &reward, &more).output().unwrap());
    let replays = [&more[..], &["--replay.groups_per_batch", "2", "--replay.capacity", "6"]].concat();
    let only_replays = dir.path().join("replays");
    done(&rl(&only_replays, &reward, &replays).output().unwrap());
    let tokens = |run: &Path| numbers(run, &["train/tokens"]);
    let (without, with) = (tokens(&plain), tokens(&only_replays));
    assert_eq!(with[0], without[0], "there is nothing to train again yet");
    // 22 groups more than 48, of turns of at most 8 tokens.
    assert!(with.iter().sum::<f64>() > 1.2 * without.iter().sum::<f64>(), "{with:?} {without:?}");
    assert!(weights(&plain) != weights(&only_replays), "the buffer has no effect");
    assert!(weights(&only_replays) != weights(&whole), "the curriculum has no effect");
}

#[test]
fn an_interrupted_stream_trains_every_prompt_once() {
    let dir = TempDir::new().unwrap();
    let (reward, run) = (length_reward(dir.path()), dir.path().join("run"));
    let prompts: String = fs::read_to_string(root().join("examples/demo/train.jsonl")).unwrap();
    let some: Vec<&str> = prompts.lines().take(30).collect();
    let data = dir.path().join("some.jsonl");
    fs::write(&data, some.join("\n")).unwrap();
    let command = || {
        let mut command =
            rl(&run, &reward, &["--data.prompts", path(&data), "--train.async_queue_size", "2"]);
        command.args(["--train.max_steps", "100"]).args(in_place(&run));
        command
    };
    killed_at_random(command, 6, timed(rl(&dir.path().join("whole"), &reward, &[])), &mut Random(3));
    let found = trained(&run);
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 4, 4, 4, 4, 2]);
    // So many different ones of 30 are all of them.
    each_once(&found);
}

#[test]
fn other_numbers_of_ranks_go_on() {
    let dir = TempDir::new().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    done(&sft(&whole, &["--optim.warmup_steps", "2"]).output().unwrap());
    for (nproc, steps) in [("4", "2"), ("2", "4"), ("3", "6")] {
        let more = ["--optim.warmup_steps", "2", "--nproc", nproc, "--sft.max_steps", steps];
        done(&sft(&parts, &more).args(in_place(&parts)).output().unwrap());
    }
    assert_close(&parts, &whole);
}

/// One of each stage's processes is killed at a random moment after a step of that stage; whether by then its checkpoint
/// is whole is left to chance.
#[test]
fn other_numbers_of_ranks_go_on_after_kill_9() {
    let dir = TempDir::new().unwrap();
    let reward = length_reward(dir.path());
    let [whole, parts] = ["whole", "parts"].map(|name| dir.path().join(name));
    done(&rl(&whole, &reward, &["--train.sync", "true"]).output().unwrap());
    let command = |nproc: &str| {
        let mut command = rl(&parts, &reward, &["--train.sync", "true", "--nproc", nproc]);
        command.args(in_place(&parts));
        command
    };
    let mut random = Random(5);
    let last = || fs::read_to_string(parts.join("metrics.jsonl")).unwrap_or_default().lines().count() as u64;
    for (nproc, step) in [("4", 2), ("2", 5), ("3", 7)] {
        let mut child = command(nproc).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let until = step + random.below(2);
        let deadline = Instant::now() + Duration::from_secs(300);
        while last() < until && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "no step {until} in five minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(random.below(200)));
        let all = processes(child.id());
        kill_9(all[random.below(all.len() as u64) as usize]);
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success(), "nothing was left to kill on {nproc}: {}", text(&output));
    }
    let said = done(&command("3").output().unwrap());
    assert!(said.contains("resume    after step"), "{said}");
    assert_eq!(trained(&parts), trained(&whole));
    assert_close(&parts, &whole);
}

/// That two runs saw and learnt the same, to 1e-5.
#[track_caller]
fn assert_close(found: &Path, expected: &Path) {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    let alike =
        |(a, b): (&(u64, f64, f64), &(u64, f64, f64))| a.0 == b.0 && close(a.1, b.1) && close(a.2, b.2);
    let (steps, of) = (learnt(found), learnt(expected));
    assert_eq!(steps.len(), of.len());
    assert!(steps.iter().zip(&of).all(alike), "{steps:?} is not {of:?}");
    let pairs = values(found).into_iter().zip(values(expected));
    let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest <= 1e-5, "weights differ by {furthest:e}");
}

#[test]
fn a_damaged_checkpoint_is_skipped_for_the_one_before() {
    let dir = TempDir::new().unwrap();
    let (whole, broken) = (dir.path().join("whole"), dir.path().join("broken"));
    done(&sft(&whole, &[]).output().unwrap());
    done(&sft(&broken, &["--sft.max_steps", "4", "--ckpt.every", "1", "--ckpt.keep", "3"]).output().unwrap());
    assert_eq!(checkpoints(&broken), ["step-000002", "step-000003", "step-000004"]);
    let of = |step: u32| broken.join(format!("checkpoints/step-00000{step}"));
    // The newest is truncated, the one before it has one bit wrong, and another was never finished.
    let (truncated, wrong) = (of(4).join("part-0-of-1.safetensors"), of(3).join("state"));
    let size = fs::metadata(&truncated).unwrap().len();
    fs::File::options().write(true).open(&truncated).unwrap().set_len(size / 2).unwrap();
    let mut bytes = fs::read(&wrong).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&wrong, bytes).unwrap();
    fs::create_dir(broken.join("checkpoints/.step-000005.part")).unwrap();

    // One that is named is not replaced by another.
    let named = sft(&dir.path().join("named"), &["--ckpt.load", path(&of(4))]).output().unwrap();
    refused(&named, &["step-000004 cannot be used", "part-0-of-1.safetensors is damaged"]);

    // That none can be used is no reason to forget what the run has learnt.
    let none = dir.path().join("none");
    done(&sft(&none, &["--sft.max_steps", "1", "--ckpt.every", "1"]).output().unwrap());
    fs::write(none.join("checkpoints/step-000001/state"), "?").unwrap();
    let output = sft(&none, &in_place(&none)).output().unwrap();
    refused(&output, &["state is damaged", "no checkpoint that can be used"]);
    assert_eq!(learnt(&none).len(), 1);

    // Later ones that cannot be used are not kept in place of the one that the run goes on from.
    let short =
        sft(&broken, &["--sft.max_steps", "3", "--ckpt.keep", "1"]).args(in_place(&broken)).output().unwrap();
    assert!(done(&short).contains("resume    after step 2"));
    assert_eq!(checkpoints(&broken), ["step-000003"]);
    done(
        &sft(&broken, &["--sft.max_steps", "4", "--ckpt.keep", "3"])
            .args(in_place(&broken))
            .output()
            .unwrap(),
    );
    fs::write(of(4).join("state"), "?").unwrap();

    let said = done(&sft(&broken, &in_place(&broken)).output().unwrap());
    assert!(said.contains("step-000004: state is damaged"), "{said}");
    assert!(said.contains("resume    after step 3"), "{said}");
    assert!(weights(&broken) == weights(&whole), "the weights differ");
    assert_eq!(checkpoints(&broken), ["step-000005", "step-000006"]);
}

#[test]
fn a_disk_that_fills_during_a_save_leaves_the_last_good_one() {
    let dir = TempDir::new().unwrap();
    let (whole, full) = (dir.path().join("whole"), dir.path().join("full"));
    done(&sft(&whole, &[]).output().unwrap());
    done(&sft(&full, &["--sft.max_steps", "2", "--ckpt.every", "1"]).output().unwrap());
    // No file may grow beyond 200 KiB: a part has 1.2 MB.
    for nproc in ["1", "2"] {
        let run = sft(&full, &in_place(&full));
        let mut limited = Command::new("bash");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\""]).arg(run.get_program());
        limited.args(run.get_args()).args(["--nproc", nproc]).current_dir(root());
        for (name, value) in run.get_envs() {
            value.map(|value| limited.env(name, value));
        }
        refused(
            &limited.output().unwrap(),
            &[
                "the checkpoint of step 3 could not be written",
                "that of step 2 is as it was",
                "File too large",
            ],
        );
        assert_eq!(checkpoints(&full), ["step-000001", "step-000002"]);
        assert_eq!(json(&full.join("status.json"))["state"], "failed");
    }
    done(&sft(&full, &in_place(&full)).output().unwrap());
    assert!(weights(&full) == weights(&whole), "the weights differ");
}

/// A run whose directory holds what is in `good`, on a disk of so many bytes in a namespace of its own, and what it leaves
/// there in `after`. None where nothing can be mounted.
fn on_a_small_disk(run: &Command, dir: &Path, (good, after): (&Path, &Path), bytes: u64) -> Option<Output> {
    let _ = fs::create_dir_all(dir);
    let mounted = |script: &str| {
        let mut within = Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={bytes} tmpfs \"$0\" && {script}");
        within.args(["-rm", "bash", "-c", &mount, path(dir), path(good), path(after)]).current_dir(root());
        within
    };
    if !mounted("true").output().is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut within = mounted(
        "good=$1; after=$2; shift 2; cp -a \"$good/.\" \"$0\" && { \"$@\"; code=$?; cp -a \"$0\" \"$after\"; exit $code; }",
    );
    within.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        value.map(|value| within.env(name, value));
    }
    Some(within.output().unwrap())
}

/// What the files of a directory take on a disk, in blocks of 4 KiB.
fn on_disk(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let of = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        metadata if metadata.is_dir() => 4096 + on_disk(&entry.path()),
        metadata => metadata.len().next_multiple_of(4096),
    };
    entries.map(of).sum()
}

#[test]
fn a_disk_that_is_full_leaves_the_last_good_one() {
    let dir = TempDir::new().unwrap();
    let reward = length_reward(dir.path());
    let supervised = |dir: &Path, more: &[&str]| sft(dir, more);
    let reinforced = |dir: &Path, more: &[&str]| {
        let more = [&["--train.sync", "true"], more].concat();
        rl(dir, &reward, &more)
    };
    type Start<'a> = &'a dyn Fn(&Path, &[&str]) -> Command;
    for (name, steps, start) in
        [("sft", "--sft.max_steps", &supervised as Start<'_>), ("train", "--train.max_steps", &reinforced)]
    {
        let [whole, good] = ["whole", "good"].map(|part| dir.path().join(format!("{part}-{name}")));
        done(&start(&whole, &[steps, "4"]).output().unwrap());
        done(&start(&good, &[steps, "2", "--ckpt.every", "1"]).output().unwrap());
        // A checkpoint has 1.2 MB.
        let room = on_disk(&good) + (600 << 10);
        for nproc in ["1", "2"] {
            let [full, after] =
                ["full", "after"].map(|part| dir.path().join(format!("{part}-{name}-{nproc}")));
            let mut run = start(&full, &[steps, "4", "--nproc", nproc]);
            run.args(in_place(&full));
            let Some(output) = on_a_small_disk(&run, &full, (&good, &after), room) else {
                return skipped("a disk that is full", "nothing can be mounted here");
            };
            let said = [
                "the checkpoint of step 3 could not be written",
                "that of step 2 is as it was",
                "No space left on device",
            ];
            refused(&output, &said);
            assert_eq!(checkpoints(&after), ["step-000001", "step-000002"]);
            assert_eq!(json(&after.join("status.json"))["state"], "failed");
            // With room again it goes on where that was.
            let said = done(&start(&after, &[steps, "4"]).args(in_place(&after)).output().unwrap());
            assert!(said.contains("resume    after step 2"), "{said}");
            assert!(weights(&after) == weights(&whole), "the weights differ");
        }
    }
}

/// The directory of checkpoints is mounted read-only in a namespace of the run: even root cannot write there.
#[test]
fn a_directory_that_has_become_read_only_leaves_the_last_good_one() {
    let dir = TempDir::new().unwrap();
    let (whole, broken) = (dir.path().join("whole"), dir.path().join("broken"));
    done(&sft(&whole, &[]).output().unwrap());
    done(&sft(&broken, &["--sft.max_steps", "2", "--ckpt.every", "1"]).output().unwrap());
    let place = broken.join("checkpoints");
    let said = &["the checkpoint of step 3 could not be written", "that of step 2 is as it was"];
    let as_it_was = |nproc: &str, output: &Output, why: &str| {
        refused(output, &[said[0], said[1], why]);
        let mut good = checkpoints(&broken);
        good.retain(|name| name.starts_with("step-"));
        assert_eq!(good, ["step-000001", "step-000002"], "{nproc}");
        assert_eq!(json(&broken.join("status.json"))["state"], "failed");
    };
    let read_only = |command: &[&str]| {
        let mut within = Command::new("unshare");
        let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        within.args(["-rm", "bash", "-c", mount, path(&place)]).args(command).current_dir(root());
        within
    };
    let can_mount = read_only(&["true"]).output().is_ok_and(|output| output.status.success());
    if can_mount {
        for nproc in ["1", "2"] {
            let run = sft(&broken, &in_place(&broken));
            let mut within = read_only(&[run.get_program().to_str().unwrap()]);
            within.args(run.get_args()).args(["--nproc", nproc]);
            for (name, value) in run.get_envs() {
                value.map(|value| within.env(name, value));
            }
            as_it_was(nproc, &within.output().unwrap(), "Read-only file system");
        }
    } else {
        skipped("a read-only directory", "nothing can be mounted here");
    }
    // Something that is no directory is in the way.
    let in_the_way = place.join(".step-000003.part");
    fs::write(&in_the_way, "?").unwrap();
    as_it_was("1", &sft(&broken, &in_place(&broken)).output().unwrap(), "Not a directory");
    fs::remove_file(&in_the_way).unwrap();
    done(&sft(&broken, &in_place(&broken)).output().unwrap());
    assert!(weights(&broken) == weights(&whole), "the weights differ");
}

#[test]
fn a_second_process_in_a_run_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    done(&sft(&run, &["--sft.max_steps", "1", "--ckpt.every", "1"]).output().unwrap());
    let lock = fs::File::create(run.join(".lock")).unwrap();
    lock.try_lock().unwrap();
    let before = learnt(&run);
    let output = sft(&run, &in_place(&run)).output().unwrap();
    refused(&output, &["waiting   for another process to leave", "another process writes to run directory"]);
    refused(&output, &[path(&run)]);
    assert_eq!(learnt(&run), before);
    drop(lock);
    assert!(done(&sft(&run, &in_place(&run)).output().unwrap()).contains("resume    after step 1"));
}

#[test]
fn what_a_run_cannot_go_on_with_is_refused() {
    let dir = TempDir::new().unwrap();
    let first = dir.path().join("first");
    done(&sft(&first, &["--sft.max_steps", "1", "--ckpt.every", "1"]).output().unwrap());
    let again = |more: &[&str]| {
        let next = dir.path().join("next");
        // The run that finds another model has begun.
        let _ = fs::remove_dir_all(&next);
        sft(&next, more).args(["--ckpt.load", path(&first)]).output().unwrap()
    };
    refused(&again(&["--run.seed", "7"]), &["run.seed was 0 and is 7"]);
    let data = dir.path().join("less.jsonl");
    let all = fs::read_to_string(root().join("examples/demo/sft.jsonl")).unwrap();
    fs::write(&data, all.lines().skip(1).collect::<Vec<_>>().join("\n")).unwrap();
    refused(&again(&["--data.conversations", path(&data)]), &["the data has changed since"]);

    refused(
        &rl(&dir.path().join("rl"), Path::new("exact-match"), &["--ckpt.load", path(&first)])
            .output()
            .unwrap(),
        &["it is of `molt sft`"],
    );
    let nothing = dir.path().join("nothing");
    refused(
        &sft(&dir.path().join("next"), &["--ckpt.load", path(&nothing)]).output().unwrap(),
        &["there is no checkpoint that can be used", "ckpt.every"],
    );
    assert!(!dir.path().join("next").exists(), "nothing was written");

    let (source, other) = (dir.path().join("source"), dir.path().join("other"));
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text = fs::read_to_string(root().join("examples/demo/model").join(file)).unwrap();
        let wider = text.replace("\"intermediate_size\": ", "\"intermediate_size\": 1");
        fs::write(source.join(file), wider).unwrap();
    }
    assert_ok(&run(&["init", path(&source), path(&other), "--seed", "1"]));
    refused(&again(&["--model.path", path(&other)]), &["of another model", "mlp.", "was", "is"]);

    // Another plugin of the same name is told, once.
    let (plugin, run) = (dir.path().join("reward.wasm"), dir.path().join("plugged"));
    let plugged = |steps: &str| {
        done(&rl(&run, &plugin, &["--train.max_steps", steps]).args(in_place(&run)).output().unwrap())
    };
    fs::copy(length_reward(dir.path()), &plugin).unwrap();
    plugged("1");
    assert!(!plugged("2").contains("changed   plugins"), "they are the same");
    fs::copy(plugins()[0].join("exact-match.wasm"), &plugin).unwrap();
    let said = plugged("3");
    assert!(said.contains("changed   plugins: others than before, see components.json"), "{said}");
    assert!(!said.contains("changed   reward"), "{said}");

    // Another learning rate is another run, and is told.
    let said = done(&again(&["--optim.lr", "1e-4", "--sft.max_steps", "2"]));
    assert!(said.contains("changed   optim.lr: 0.001 -> 0.0001"), "{said}");
}

#[test]
fn the_best_model_is_of_this_run_and_this_evaluation() {
    let dir = TempDir::new().unwrap();
    let (reward, run, held_out) =
        (length_reward(dir.path()), dir.path().join("run"), dir.path().join("held-out.jsonl"));
    let prompts = fs::read_to_string(root().join("examples/demo/held-out.jsonl")).unwrap();
    fs::write(&held_out, prompts.lines().take(4).collect::<Vec<_>>().join("\n")).unwrap();
    let best = run.join("best/best.json");
    // Runs on, and gives back what the best model is said to reach.
    let go = |steps: &str, more: &[&str]| {
        let mut command = rl(&run, &reward, &["--train.sync", "true", "--train.max_steps", steps]);
        command.args(["--eval.prompts", path(&held_out), "--eval.max_new_tokens", "8"]);
        command.args(["--train.eval_every", "1", "--train.keep_best", "reward_mean"]);
        done(&command.args(more).args(in_place(&run)).output().unwrap());
        json(&best)["value"].as_f64().unwrap()
    };
    // No run will do better.
    let boast = || {
        let mut record = json(&best);
        record["value"] = 1e9.into();
        fs::write(&best, record.to_string()).unwrap();
    };
    assert!(go("1", &[]) < 1e9);
    boast();
    assert_eq!(go("2", &[]), 1e9, "it goes on");
    assert!(go("3", &["--eval.samples", "2"]) < 1e9, "it is evaluated in another way");
    boast();
    fs::write(&held_out, prompts.lines().take(5).collect::<Vec<_>>().join("\n")).unwrap();
    assert!(go("4", &["--eval.samples", "2"]) < 1e9, "on other prompts");
    boast();
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    assert!(go("1", &["--eval.samples", "2"]) < 1e9, "it begins anew");
}

#[test]
fn a_checkpoint_can_hold_the_model() {
    let dir = TempDir::new().unwrap();
    let (first, next) = (dir.path().join("first"), dir.path().join("next"));
    let more = ["--sft.max_steps", "3", "--ckpt.every", "1", "--ckpt.export", "true", "--ckpt.keep", "5"];
    let kept = |run: &Path, gib: &str| {
        done(&sft(run, &more).args(["--ckpt.keep_gib", gib]).output().unwrap());
        checkpoints(run)
    };
    // One alone is larger than that.
    assert_eq!(kept(&first, "0.001"), ["step-000003"]);
    let exported = first.join("checkpoints/step-000003");
    assert!(weights(&exported) == weights(&first), "the export is the model of the run");
    // Room for two and a half.
    let gib = format!("{:.9}", 2.5 * on_disk(&exported) as f64 / f64::from(1 << 30));
    assert_eq!(kept(&dir.path().join("two"), &gib), ["step-000002", "step-000003"]);
    assert_eq!(kept(&dir.path().join("all"), "1"), ["step-000001", "step-000002", "step-000003"]);
    let said = done(
        &sft(&next, &["--model.path", path(&exported.join("model")), "--sft.max_steps", "1"])
            .output()
            .unwrap(),
    );
    let (went_on, from) = (learnt(&next)[0].1, learnt(&first)[0].1);
    assert!(went_on < from - 0.1, "{said}");
}
