//! Files, directories and connections that the host holds open for all instances together.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use thiserror::Error;

/// How many are open, and how many may be: half of what the process may, so that the host can always open its own.
static OPEN: AtomicUsize = AtomicUsize::new(0);
static LIMIT: LazyLock<usize> = LazyLock::new(|| {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.map_or(usize::MAX, |most| usize::try_from(most / 2).unwrap_or(usize::MAX))
});

/// One of them; given back when dropped.
#[derive(Debug)]
pub(crate) struct OpenFile(());

/// All that plugins may have are open.
#[derive(Debug, Clone, Copy, Error)]
#[error("plugins hold half of the files open that the process may, whose limit `ulimit -n` says")]
pub(crate) struct NoMoreFiles;

impl OpenFile {
    pub(crate) fn new() -> Result<Self, NoMoreFiles> {
        let most = *LIMIT;
        let more = |open| (open < most).then_some(open + 1);
        let taken = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Self(())).map_err(|_| NoMoreFiles)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}
