//! Where downloads and build output live: outside the checkout, shared by all clones.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The version of libtorch that the `tch` crate binds.
pub(crate) const LIBTORCH: &str = "2.13.0";

/// `${XDG_CACHE_HOME:-~/.cache}/molt`.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn locate() -> Result<Cache> {
        Self::from_environment(std::env::var_os("XDG_CACHE_HOME"), std::env::home_dir())
    }

    /// A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification asks.
    fn from_environment(xdg: Option<std::ffi::OsString>, home: Option<PathBuf>) -> Result<Cache> {
        let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
        match xdg.or(home.filter(|h| h.is_absolute()).map(|h| h.join(".cache"))) {
            Some(base) => Ok(Cache { root: base.join("molt") }),
            None => bail!("no place for the cache: set HOME or XDG_CACHE_HOME to an absolute path"),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Downloaded packages.
    pub(crate) fn wheels(&self) -> PathBuf {
        self.root.join("wheels")
    }

    /// Headers and libraries, as the build of `tch` expects them.
    pub(crate) fn libtorch(&self) -> PathBuf {
        self.root.join(format!("libtorch-{LIBTORCH}"))
    }

    /// Cargo's build output.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// The registry server of the tests, of the version that `registry` pins.
    pub(crate) fn registry(&self) -> PathBuf {
        self.root.join("docker-registry-2.8.2")
    }

    /// A model in Hugging Face layout.
    pub(crate) fn model(&self, name: &str) -> PathBuf {
        self.root.join("models").join(name)
    }

    /// Held while the cache is written, so that two clones do not write the same file; freed on drop.
    pub(crate) fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.root)
            .with_context(|| format!("cannot create the cache {}", self.root.display()))?;
        let path = self.root.join("setup.lock");
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another set-up that holds {}", path.display());
                file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(file)
    }
}

/// Replaces `path` by `contents` in one rename, and only when they differ; says whether it did.
pub(crate) fn write_if_changed(path: &Path, contents: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|present| present == contents) {
        return Ok(false);
    }
    let temporary = path.with_extension(format!("part-{}", std::process::id()));
    fs::write(&temporary, contents).with_context(|| format!("cannot write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdg_cache_home_wins_unless_it_is_relative() {
        let home = Some(PathBuf::from("/home/ada"));
        let root = |xdg: Option<&str>, home| {
            Cache::from_environment(xdg.map(Into::into), home).map(|cache| cache.root().to_path_buf())
        };
        assert_eq!(root(Some("/scratch"), home.clone()).expect("absolute"), Path::new("/scratch/molt"));
        assert_eq!(root(Some("scratch"), home.clone()).expect("home"), Path::new("/home/ada/.cache/molt"));
        assert_eq!(root(None, home).expect("home"), Path::new("/home/ada/.cache/molt"));
        assert!(root(None, None).is_err());
    }

    #[test]
    fn an_unchanged_file_is_not_written_again() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("local.toml");
        assert!(write_if_changed(&path, b"a").expect("writable"));
        assert!(!write_if_changed(&path, b"a").expect("writable"));
        assert!(write_if_changed(&path, b"b").expect("writable"));
        assert_eq!(fs::read(&path).expect("readable"), b"b");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1, "no temporary file is left");
    }
}
