//! The private directory of one instance, and the books of everything that it holds open and has written.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;
use thiserror::Error;

use super::open::OpenFile;
use super::roots::{Roots, flatten};

/// Files and directories that one instance may hold open at a time.
const OPEN: usize = 64;

/// Streams of files that one instance may hold at a time: the host buffers 64 KiB for each.
const STREAMS: usize = 256;

/// Directories that one instance may be listing at a time: the host holds all names of each.
const LISTINGS: usize = 8;

/// Why the host refuses something that the operating system would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    #[error("the size or the number of files in /scratch is used up")]
    Quota,
    #[error("too much is open")]
    TooMuchOpen,
}

/// What a handle keeps alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file or directory that the operating system holds open.
    Open,
    Stream,
    Listing,
}

/// The books of one instance. Clones are the same books.
#[derive(Debug, Clone)]
pub(crate) struct Books(Arc<Mutex<Accounts>>);

#[derive(Debug)]
struct Accounts {
    /// What is left of /scratch.
    bytes: u64,
    files: u64,
    open: usize,
    streams: usize,
    listings: usize,
    /// The files in /scratch by inode: those that have a name, and those that are still open.
    sizes: HashMap<u64, Size>,
}

#[derive(Debug, Default)]
struct Size {
    bytes: u64,
    handles: usize,
    removed: bool,
}

impl Books {
    /// Books of a scratch directory for so many bytes and files.
    pub(crate) fn new(bytes: u64, files: u64) -> Self {
        let accounts = Accounts { bytes, files, open: 0, streams: 0, listings: 0, sizes: HashMap::new() };
        Self(Arc::new(Mutex::new(accounts)))
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle of the given kind; `scratch` is the inode of the file in /scratch that it keeps alive.
    pub(crate) fn handle(&self, kind: Kind, scratch: Option<u64>) -> Result<Handle, Refusal> {
        let mut accounts = self.lock();
        let (held, most) = match kind {
            Kind::Open => (&mut accounts.open, OPEN),
            Kind::Stream => (&mut accounts.streams, STREAMS),
            Kind::Listing => (&mut accounts.listings, LISTINGS),
        };
        if *held >= most {
            return Err(Refusal::TooMuchOpen);
        }
        let open = (kind == Kind::Open).then(OpenFile::new).transpose().map_err(|_| Refusal::TooMuchOpen)?;
        *held += 1;
        if let Some(inode) = scratch {
            accounts.sizes.entry(inode).or_default().handles += 1;
        }
        drop(accounts);
        Ok(Handle { books: self.clone(), kind, scratch, _open: open })
    }

    /// Enters a new file or directory.
    pub(crate) fn create(&self) -> Result<(), Refusal> {
        let mut accounts = self.lock();
        accounts.files = accounts.files.checked_sub(1).ok_or(Refusal::Quota)?;
        Ok(())
    }

    /// A directory was removed, or a file was not created after all.
    pub(crate) fn uncreate(&self) {
        self.lock().files += 1;
    }

    /// A file lost its name. Its bytes are free when nothing holds it open any more.
    pub(crate) fn remove(&self, inode: u64) {
        let mut accounts = self.lock();
        accounts.files += 1;
        if let Some(size) = accounts.sizes.get_mut(&inode) {
            size.removed = true;
        }
        accounts.forget(inode);
    }

    /// Whether the file may be `bytes` long.
    pub(crate) fn check(&self, inode: u64, bytes: u64) -> Result<(), Refusal> {
        let accounts = self.lock();
        let held = accounts.sizes.get(&inode).map_or(0, |size| size.bytes);
        if bytes.saturating_sub(held) > accounts.bytes { Err(Refusal::Quota) } else { Ok(()) }
    }

    /// Enters what the file's size is now.
    pub(crate) fn settle(&self, file: &fs::File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut accounts = self.lock();
        let size = accounts.sizes.entry(metadata.ino()).or_default();
        let before = std::mem::replace(&mut size.bytes, metadata.len());
        accounts.bytes = accounts.bytes.saturating_add(before).saturating_sub(metadata.len());
        Ok(())
    }
}

impl Accounts {
    /// Gives the bytes of a file back that has neither a name nor a handle.
    fn forget(&mut self, inode: u64) {
        if self.sizes.get(&inode).is_some_and(|size| size.removed && size.handles == 0)
            && let Some(size) = self.sizes.remove(&inode)
        {
            self.bytes += size.bytes;
        }
    }
}

/// Something that the instance holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    books: Books,
    kind: Kind,
    scratch: Option<u64>,
    _open: Option<OpenFile>,
}

impl Handle {
    /// Keeps the file in /scratch with this inode alive from now on.
    pub(crate) fn keep(&mut self, inode: u64) {
        self.books.lock().sizes.entry(inode).or_default().handles += 1;
        self.scratch = Some(inode);
    }

    /// The file in /scratch that the handle keeps alive.
    pub(crate) fn scratch(&self) -> Option<u64> {
        self.scratch
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut accounts = self.books.lock();
        match self.kind {
            Kind::Open => accounts.open -= 1,
            Kind::Stream => accounts.streams -= 1,
            Kind::Listing => accounts.listings -= 1,
        }
        if let Some(inode) = self.scratch {
            if let Some(size) = accounts.sizes.get_mut(&inode) {
                size.handles -= 1;
            }
            accounts.forget(inode);
        }
    }
}

/// A directory that is gone when dropped, however deep the guest nested others in it.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    dir: TempDir,
    _open: OpenFile,
    /// Outlives the directory.
    _roots: Arc<Roots>,
}

impl ScratchDir {
    pub(crate) fn new(roots: &Arc<Roots>) -> wasmtime::Result<Self> {
        let open = OpenFile::new()?;
        let dir = Self { dir: TempDir::new_in(roots.path())?, _open: open, _roots: roots.clone() };
        fs::create_dir(dir.path())?;
        Ok(dir)
    }

    /// What the guest sees.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = flatten(self.dir.path()) {
            tracing::warn!("{}: {error}", self.dir.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::roots::tests::deepen;
    use super::*;

    fn file(dir: &ScratchDir, name: &str, bytes: u64) -> (fs::File, u64) {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
        let inode = file.metadata().unwrap().ino();
        (file, inode)
    }

    #[test]
    fn bytes_are_free_when_neither_a_name_nor_a_handle_is_left() {
        let dir = ScratchDir::new(&Arc::new(Roots::new().unwrap())).unwrap();
        let books = Books::new(100, 2);
        let (on_disk, inode) = file(&dir, "a", 80);
        books.create().unwrap();
        let handle = books.handle(Kind::Open, Some(inode)).unwrap();
        books.settle(&on_disk).unwrap();
        assert_eq!(books.check(inode, 100), Ok(()));
        assert_eq!(books.check(inode, 101), Err(Refusal::Quota));
        let other = inode + 1;
        books.remove(inode);
        assert_eq!(books.check(other, 21), Err(Refusal::Quota), "the removed file is still open");
        drop(handle);
        assert_eq!(books.check(other, 100), Ok(()));
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let books = Books::new(0, 2);
        books.create().unwrap();
        books.create().unwrap();
        assert_eq!(books.create(), Err(Refusal::Quota));
        books.uncreate();
        assert_eq!(books.create(), Ok(()));
    }

    #[test]
    fn what_is_open_is_bounded_and_given_back() {
        for (kind, most) in [(Kind::Open, OPEN), (Kind::Stream, STREAMS), (Kind::Listing, LISTINGS)] {
            let books = Books::new(0, 0);
            let mut held: Vec<Handle> = (0..most).map(|_| books.handle(kind, None).unwrap()).collect();
            assert_eq!(books.handle(kind, None).unwrap_err(), Refusal::TooMuchOpen, "{kind:?}");
            held.pop();
            assert!(books.handle(kind, None).is_ok());
        }
    }

    #[test]
    fn a_deep_directory_is_removed() {
        let dir = ScratchDir::new(&Arc::new(Roots::new().unwrap())).unwrap();
        let root = dir.dir.path().to_owned();
        deepen(&dir.path());
        drop(dir);
        assert!(!root.exists());
    }
}
