//! Ctrl-C: the first asks the run to stop after its step, the second ends the process.

use crate::stop::{INTERRUPTED, Stop};
use std::io::Write;
use std::path::Path;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// From now on Ctrl-C cancels the token that is returned.
pub(crate) fn on_ctrl_c(runtime: &Handle) -> CancellationToken {
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    runtime.spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if cancelled.is_cancelled() {
                std::process::exit(INTERRUPTED.into());
            }
            cancelled.cancel();
            let told = b"stopping after this step; Ctrl-C again ends at once\n";
            let _ = molt_observe::LogWriter.write_all(told);
        }
    });
    stop
}

/// What an interrupted run tells at its end.
pub(crate) fn told(run_dir: &Path) -> Stop {
    let help = format!("what it reached is in {}", run_dir.display());
    Stop { code: INTERRUPTED, ..Stop::failed("interrupted", help) }
}
