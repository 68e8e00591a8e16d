//! What the boundary costs, against a limit or a peer measured in the same run: `cargo xtask bench sandbox [PART…]`,
//! where a part is rewards, steps, episodes, estimates or first-use.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{call, library, plugins, sample, say, task};
use molt_plugin::estimator::{Batch, Credit, Estimator as _};
use molt_sandbox::{EstimatorBatch, Kind, Library, Limits, Sandbox, inspect};
use serde_json::json;
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Episodes that are open together.
const EPISODES: usize = 5000;

/// Action tokens of the estimator's batch: rollouts of 1000.
const TOKENS: usize = 1_000_000;

/// What Python starts for: the same exact match.
const PYTHON_REWARD: &str = "import json, sys; s = json.load(sys.stdin); \
     print(1.0 if s['completion'].strip() == s['label'].strip() else 0.0)";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cache = tempfile::tempdir().expect("a temporary directory");
    let sandbox = Sandbox::new(Some(cache.path())).expect("the runtime starts");
    // `cargo bench` gives `--bench` besides the parts that were asked for.
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    let mut missed = 0;
    runtime.block_on(async {
        if wanted("rewards") {
            missed += rewards(&sandbox).await;
        }
        if wanted("steps") {
            missed += steps(&sandbox).await;
        }
        if wanted("episodes") {
            missed += episodes(&sandbox).await;
        }
        if wanted("estimates") {
            missed += estimates(&sandbox).await;
        }
    });
    if wanted("first-use") {
        first_use();
    }
    println!("{}", if missed == 0 { "every limit is met".to_owned() } else { format!("{missed} missed") });
}

/// Prints one line, and counts a limit that is missed.
fn report(what: &str, measured: f64, unit: &str, limit: f64) -> usize {
    let missed = measured > limit;
    let verdict = if missed { "MISSED" } else { "ok" };
    println!("{what:<58} {measured:>9.2} {unit:<4} limit {limit:>6} {verdict}");
    usize::from(missed)
}

/// The median time of `runs` runs.
async fn median(runs: usize, mut run: impl AsyncFnMut()) -> Duration {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        run().await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

async fn rewards(sandbox: &Sandbox) -> usize {
    let reward = sandbox.reward(&library(), "exact-match", Limits::default()).expect("a reward");
    let answer = "forty-two ".repeat(205);
    let sample = sample(&answer, Some(answer.trim()));
    let score = async || drop(black_box(reward.score(call(1), &sample).await.expect("a verdict")));
    median(2000, score).await; // warm
    let ours = median(20_000, score).await;
    let python = python();
    let input = json!({ "completion": answer, "label": answer }).to_string();
    let theirs = median(41, async || {
        let mut child = Command::new(&python)
            .args(["-c", PYTHON_REWARD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("python3 reads");
        let output = child.wait_with_output().expect("python3 ends");
        assert_eq!(output.stdout.trim_ascii(), b"1.0");
    })
    .await;
    let missed = report("Rust reward on 2 KB, with a new instance", micros(ours), "µs", 50.0);
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    println!("{:<58} {:>9.2} ms", "the same in a new Python process", micros(theirs) / 1e3);
    missed + report("the reward's share of that, of which it may take 1/500", 500.0 / ratio, "/500", 1.0)
}

/// The interpreter itself: what is called `python3` may be a script that looks for it.
fn python() -> String {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let output = output.expect("python3 is there");
    String::from_utf8(output.stdout).expect("a path").trim().to_owned()
}

async fn steps(sandbox: &Sandbox) -> usize {
    let plugin = sandbox.environment(&library(), "single-turn", Limits::default()).expect("an environment");
    let mut episode = plugin.open(call(1), &task(None)).await.expect("an episode");
    episode.reset().await.expect("a prompt");
    let action = say("42");
    let step = async || drop(black_box(episode.step(&action).await.expect("a transition")));
    let time = median(50_000, step).await;
    report("a call on a live instance", micros(time), "µs", 5.0)
}

async fn episodes(sandbox: &Sandbox) -> usize {
    let limits = Limits { instances: EPISODES, ..Limits::default() };
    let plugin = sandbox.environment(&library(), "guess-number", limits).expect("an environment");
    let mut open = Vec::with_capacity(EPISODES);
    let before = resident_kib();
    let start = Instant::now();
    for member in 0..EPISODES as u32 {
        let mut episode = plugin.open(call(member), &task(Some("7"))).await.expect("an episode");
        episode.reset().await.expect("a prompt");
        open.push(episode);
    }
    let each = start.elapsed() / EPISODES as u32;
    let kib = (resident_kib() - before) / EPISODES as f64;
    println!("{:<58} {:>9.2} µs", "opening an episode and its first prompt", micros(each));
    report("resident memory of each of 5,000 open episodes", kib, "KiB", 128.0)
}

fn resident_kib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

async fn estimates(sandbox: &Sandbox) -> usize {
    let limits = Limits { memory_mib: 1024, cpu_ms: 60_000, ..Limits::default() };
    let plugin = sandbox.estimator(&library(), "reinforce", limits).expect("an estimator");
    let batch = batch();
    // In turn, so that whatever else the machine does is in both.
    let (mut ours, mut native) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        let start = Instant::now();
        drop(black_box(plugin.estimate(&batch).await.expect("an estimate")));
        ours.push(start.elapsed());
        let start = Instant::now();
        // A plugin is handed a batch of its own, and the host makes one number per token of what comes back.
        let estimates = reinforce::Reinforce::estimate(own(&batch)).expect("an estimate");
        drop(black_box((per_token(estimates.advantages), per_token(estimates.returns))));
        native.push(start.elapsed());
    }
    let [ours, native] = [ours, native].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("{:<58} {:>9.2} ms", "an estimate over 1,000,000 action tokens", micros(ours) / 1e3);
    println!("{:<58} {:>9.2} ms", "the same function compiled natively", micros(native) / 1e3);
    report("times as long in the sandbox", ours.as_secs_f64() / native.as_secs_f64(), "", 2.0)
}

fn per_token(credit: Credit) -> Vec<f32> {
    match credit {
        Credit::PerToken(tokens) => tokens,
        Credit::PerRollout(rollouts) => {
            rollouts.into_iter().flat_map(|value| std::iter::repeat_n(value, 1000)).collect()
        }
    }
}

fn batch() -> EstimatorBatch {
    let rollouts = (TOKENS / 1000) as u32;
    EstimatorBatch {
        rewards: (0..rollouts).map(|rollout| (rollout % 7) as f32 / 7.0).collect(),
        groups: (0..rollouts).map(|rollout| rollout / 8).collect(),
        segment_rollouts: (0..rollouts).collect(),
        segment_offsets: (0..=rollouts).map(|rollout| rollout * 1000).collect(),
        turns: (0..TOKENS as u32).map(|token| token % 1000 / 250).collect(),
        turn_rewards: (0..rollouts * 4).map(|turn| (turn % 5) as f32 / 5.0).collect(),
        turn_offsets: (0..=rollouts).map(|rollout| rollout * 4).collect(),
        kl: (0..TOKENS).map(|token| (token % 11) as f32 / 1000.0).collect(),
        values: Vec::new(),
        kl_coef: 0.01,
        parameters: vec![0.99],
    }
}

fn own(batch: &EstimatorBatch) -> Batch {
    Batch {
        rewards: batch.rewards.clone(),
        groups: batch.groups.clone(),
        segment_rollouts: batch.segment_rollouts.clone(),
        segment_offsets: batch.segment_offsets.clone(),
        turns: batch.turns.clone(),
        turn_rewards: batch.turn_rewards.clone(),
        turn_offsets: batch.turn_offsets.clone(),
        kl: batch.kl.clone(),
        values: batch.values.clone(),
        kl_coef: batch.kl_coef,
        parameters: batch.parameters.clone(),
    }
}

/// What the first use of a component takes after it changed, and what every later one takes: the same reward in
/// every language, as the tests of the languages left them, and what ships.
fn first_use() {
    println!("\n{:<58} {:>9} {:>12} {:>12}", "first use of a component", "MiB", "compiled", "from cache");
    let languages = files(&plugins("tmp").join("languages"));
    let rewards = languages.into_iter().filter(|file| name(file).contains("-reward-"));
    let mut files: Vec<PathBuf> = rewards.chain(files(&plugins("plugins"))).collect();
    files.sort();
    for file in files {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let times = [(); 2].map(|()| load(&file, cache.path()));
        let mib = inspect(&file).map_or(0.0, |info| info.size as f64 / f64::from(1 << 20));
        let [first, later] =
            times.map(|time| time.map_or("-".into(), |t| format!("{:.1} ms", micros(t) / 1e3)));
        println!("{:<58} {mib:>9.2} {first:>12} {later:>12}", name(&file));
    }
}

fn name(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "wasm")).collect()
}

/// The time until the component can be called, in a sandbox of its own. None for one that needs a grant.
fn load(file: &Path, cache: &Path) -> Option<Duration> {
    let sandbox = Sandbox::new(Some(cache)).expect("the runtime starts");
    let (library, limits) = (Library::new(&[]), Limits::default());
    let name = file.display().to_string();
    let kind = inspect(file).expect("a plugin").kind;
    let start = Instant::now();
    let loaded = match kind {
        Kind::Reward => sandbox.reward(&library, &name, limits).map(drop),
        Kind::Environment => sandbox.environment(&library, &name, limits).map(drop),
        Kind::Estimator => sandbox.estimator(&library, &name, limits).map(drop),
        Kind::Loss => sandbox.loss(&library, &name, limits).map(drop),
        Kind::Interpreter => sandbox.interpreter(&library, &name, limits).map(drop),
        Kind::ChatAgent => return None,
    };
    loaded.ok().map(|()| start.elapsed())
}
