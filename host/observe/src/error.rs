//! What can go wrong with the files of a run.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run could not be recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("another process writes to run directory {}: wait until it has ended, or name another one", .0.display())]
    Busy(PathBuf),
    #[error("run directory {} is not empty: it would mix two runs; name another one", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is not a directory, so no run directory can be made there", .0.display())]
    NotADirectory(PathBuf),
    #[error("run directory {} cannot be written to: {source}", .path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}; what the run wrote before is still there", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: not a line of metrics: {detail}", .path.display())]
    Metrics { path: PathBuf, line: usize, detail: String },
    #[error("cannot draw {}: {detail}", .path.display())]
    Draw { path: PathBuf, detail: String },
}

impl ObserveError {
    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> ObserveError {
        |source| ObserveError::Write { path: path.to_owned(), source }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> ObserveError {
        |source| ObserveError::Read { path: path.to_owned(), source }
    }
}
