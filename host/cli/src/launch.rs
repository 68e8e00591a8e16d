//! `--nproc N`: the ranks of a run as processes of this machine.

use crate::stop::{OrStop, Stop};
use molt_torch::Store;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The launcher's process, for the ranks that it starts.
const LAUNCHER: &str = "MOLT_LAUNCHER";

/// How long the others may take to write down where they are when one was lost.
const GRACE: Duration = Duration::from_secs(20);

const LOOK: Duration = Duration::from_millis(50);

/// Runs this program `ranks` times with `args`, and gives back the exit code of the run: that of rank 0, or of
/// the first rank that fails. Then the others are ended.
pub(crate) fn run(ranks: usize, args: &[OsString]) -> Result<u8, Stop> {
    // The launcher serves the store, so that the port is taken from the start and outlives every rank.
    let store = Store::serve("127.0.0.1", 0, Duration::from_secs(60))
        .or_failed("the ranks cannot find each other", "look at the network settings of this machine")?;
    let threads = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / ranks).max(1));
    let mut children: Vec<Option<Child>> = Vec::new();
    for rank in 0..ranks {
        children.push(Some(start(rank, ranks, args, (store.port(), threads)).or_failed(
            format!("rank {rank} cannot be started"),
            "look at the limits of this machine (ulimit -u), or lower --nproc",
        )?));
    }
    ignore_ctrl_c();
    let (mut code, mut end) = (0, None);
    while children.iter().any(Option::is_some) {
        for (rank, slot) in children.iter_mut().enumerate() {
            let Some(child) = slot else { continue };
            let late = end.is_some_and(|end| Instant::now() > end);
            if late {
                let _ = child.kill();
            }
            let Ok(Some(status)) = child.try_wait() else { continue };
            *slot = None;
            if !status.success() && end.is_none() {
                code = exit_code(status);
                end = Some(Instant::now() + GRACE);
                if rank > 0 {
                    say(&format!("rank {rank} of {ranks} is lost ({status}): the run ends\n"));
                }
            }
        }
        std::thread::sleep(LOOK);
    }
    Ok(code)
}

fn start(
    rank: usize,
    ranks: usize,
    args: &[OsString],
    (port, threads): (u16, usize),
) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(args)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", ranks.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .env(LAUNCHER, std::process::id().to_string());
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", threads.to_string());
    }
    if rank == 0 {
        return command.spawn();
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let said = child.stderr.take();
    std::thread::spawn(move || {
        for line in said.into_iter().flat_map(|said| BufReader::new(said).lines()).map_while(Result::ok) {
            say(&format!("rank {rank}: {line}\n"));
        }
    });
    Ok(child)
}

fn say(line: &str) {
    // Above the progress line of rank 0, which another process draws: a line of its own at worst.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Ends this rank if its launcher is gone, as long as it lives: with the launcher the store has gone that the rank
/// would try to connect to for `fsdp.timeout_s`. Joined ranks notice by themselves.
pub(crate) struct Lifeline(Arc<AtomicBool>);

impl Lifeline {
    /// None for a rank that something else has started.
    pub(crate) fn hold() -> Option<Self> {
        let launcher: u32 = std::env::var(LAUNCHER).ok()?.parse().ok()?;
        let held = Arc::new(AtomicBool::new(true));
        let line = Self(Arc::clone(&held));
        std::thread::spawn(move || {
            while held.load(Ordering::Relaxed) {
                if std::os::unix::process::parent_id() != launcher {
                    say("error: the launcher of this rank is gone: it ends\n");
                    std::process::exit(1);
                }
                std::thread::sleep(LOOK);
            }
        });
        Some(line)
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A signal counts as shells count it.
fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Ctrl-C reaches the ranks too, of which the first decides how the run ends.
fn ignore_ctrl_c() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(async { while tokio::signal::ctrl_c().await.is_ok() {} });
        }
    });
}
