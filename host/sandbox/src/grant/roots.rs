//! Where the scratch directories of a plugin's instances are, and what processes that were killed left of theirs.

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// How the name begins, in the system's directory for temporary files.
const PREFIX: &str = "molt-scratch-";

/// The file in it that is locked for as long as the process uses it.
const LOCK: &str = "lock";

/// The directory that holds the scratch directories of one plugin's instances.
#[derive(Debug)]
pub(crate) struct Roots {
    dir: TempDir,
    _lock: File,
}

impl Roots {
    /// Makes one, and removes those that nobody uses any more.
    pub(crate) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(place: &Path) -> io::Result<Self> {
        for entry in fs::read_dir(place)?.flatten() {
            if let Some(_lock) = left_behind(&entry)
                && let Err(error) = flatten(&entry.path()).and_then(|()| fs::remove_dir_all(entry.path()))
            {
                tracing::warn!("{}: {error}", entry.path().display());
            }
        }
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        // Locked before it has its name: what has a lock that is free is taken away.
        let new = dir.path().join("new");
        let lock = File::create(&new)?;
        lock.try_lock()?;
        fs::rename(new, dir.path().join(LOCK))?;
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The lock of a directory of ours whose process is gone.
fn left_behind(entry: &DirEntry) -> Option<File> {
    let metadata = entry.metadata().ok()?;
    let ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    if !ours || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
        return None;
    }
    let lock = File::open(entry.path().join(LOCK)).ok()?;
    lock.try_lock().ok().map(|()| lock)
}

/// Moves every directory below `root` to one place in it, so that removing them takes neither a deep stack nor many
/// open files.
pub(crate) fn flatten(root: &Path) -> io::Result<()> {
    let flat = tempfile::Builder::new().prefix("flat-").tempdir_in(root)?.keep();
    let mut directories = vec![root.to_owned()];
    let mut count = 0_u64;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.path() != flat {
                let moved = flat.join(count.to_string());
                count += 1;
                fs::rename(entry.path(), &moved)?;
                directories.push(moved);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let used = Roots::new_in(place.path()).unwrap();
        fs::write(used.path().join("file"), "x").unwrap();
        // The lock of a process that was killed is free.
        fs::create_dir_all(path("molt-scratch-dead/instance/scratch")).unwrap();
        fs::write(path("molt-scratch-dead/lock"), "").unwrap();
        deepen(&path("molt-scratch-dead/instance/scratch"));
        for (name, file) in [("molt-scratch-young", "new"), ("other", "lock"), ("target", "lock")] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join(file), "").unwrap();
        }
        std::os::unix::fs::symlink(path("target"), path("molt-scratch-link")).unwrap();
        let other = Roots::new_in(place.path()).unwrap();
        assert!(!path("molt-scratch-dead").exists());
        for kept in ["molt-scratch-young/new", "other/lock", "target/lock", "molt-scratch-link/lock"] {
            assert!(path(kept).exists(), "{kept}");
        }
        assert!(used.path().join("file").exists() && other.path().join(LOCK).exists());
        let gone = [used.path().to_owned(), other.path().to_owned()];
        drop((used, other));
        assert!(gone.iter().all(|root| !root.exists()));
    }

    /// Nests deeper than a process may have files open, and than a path may be long.
    pub(in crate::grant) fn deepen(path: &Path) {
        let mut inside = cap_std::fs::Dir::open_ambient_dir(path, cap_std::ambient_authority()).unwrap();
        for _ in 0..1500 {
            inside.create_dir("deeper").unwrap();
            inside.write("file", "x").unwrap();
            inside = inside.open_dir("deeper").unwrap();
        }
    }
}
