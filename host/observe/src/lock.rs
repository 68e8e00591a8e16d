//! One process at a time writes to a run directory.

use crate::ObserveError;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the file that is locked. It stays behind, as one that is removed could be locked twice.
pub(crate) const FILE: &str = ".lock";

/// A run directory that this process has for itself. The system gives it free however the process ends.
#[derive(Debug)]
pub struct Lock {
    dir: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes a directory, which is made if it is absent. One that another process has, which may be on its way out, is
    /// awaited for `patience`, and `waits` is called before.
    ///
    /// # Errors
    /// If the other process still has it after that, or the directory cannot be written to.
    pub fn take(dir: &Path, patience: Duration, waits: impl FnOnce()) -> Result<Self, ObserveError> {
        let unwritable = |source| ObserveError::Unwritable { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(unwritable)?;
        let dir = dir.canonicalize().map_err(unwritable)?;
        let file = File::create(dir.join(FILE)).map_err(unwritable)?;
        let end = Instant::now() + patience;
        let mut waits = Some(waits);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Nothing can be locked on this file system.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => break,
                Err(TryLockError::Error(error)) => return Err(unwritable(error)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    if let Some(waits) = waits.take() {
                        waits();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => return Err(ObserveError::Busy(dir)),
            }
        }
        Ok(Self { dir, _file: file })
    }

    /// The absolute path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_taken_is_refused_until_it_is_free() {
        let place = tempfile::tempdir().expect("temporary directory");
        let dir = place.path().join("a/run");
        let take = |patience| Lock::take(&dir, patience, || {});
        let first = take(Duration::ZERO).expect("nobody has it");
        let error = take(Duration::from_millis(120)).expect_err("it is taken").to_string();
        assert!(error.contains(&dir.display().to_string()) && error.contains("another process"), "{error}");
        drop(first);
        take(Duration::ZERO).expect("it is free again");
    }

    #[test]
    fn a_process_on_its_way_out_is_awaited() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = Lock::take(dir.path(), Duration::ZERO, || {}).expect("nobody has it");
        // It goes when the second says that it waits.
        Lock::take(dir.path(), Duration::from_secs(60), move || drop(first)).expect("it became free");
    }
}
