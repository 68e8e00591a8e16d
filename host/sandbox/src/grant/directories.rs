//! The directories of the grants `read` and `scratch_mib`, and what one instance holds of them.

use cap_std::ambient_authority;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use wasmtime_wasi::FsPerms;
use wasmtime_wasi::filesystem::{Dir, OpenMode, WasiFilesystemCtx};
use wasmtime_wasi::p2::FsResult;
use wasmtime_wasi::p2::bindings::filesystem::types::{DirectoryEntry, MetadataHashValue};

use super::roots::Roots;
use super::scratch::{Books, Handle, ScratchDir};

/// Where the guest sees its own directory.
pub(super) const SCRATCH: &str = "/scratch";

/// The directories of one plugin, opened when it is loaded.
#[derive(Clone, Default)]
pub(crate) struct Directories {
    /// With the place where the guest sees it.
    read: Vec<(Dir, String)>,
    scratch: Option<Scratch>,
    /// Whether the guest may see when files were written.
    times: bool,
}

#[derive(Clone)]
struct Scratch {
    bytes: u64,
    files: u64,
    roots: Arc<Roots>,
}

impl Directories {
    /// Opens a directory that the guest may read, as `/` and its last name.
    pub(crate) fn read(&mut self, path: &Path) -> Result<(), String> {
        let place = path.file_name().ok_or("it has no last name; name the directory itself, e.g. ../data")?;
        let place = place.to_str().ok_or("its last name is not UTF-8; rename it")?;
        let place = format!("/{place}");
        if place == SCRATCH || self.read.iter().any(|(_, other)| *other == place) {
            return Err(format!("the plugin would see two directories as {place}"));
        }
        let dir = cap_std::fs::Dir::open_ambient_dir(path, ambient_authority()).map_err(|e| e.to_string())?;
        self.read.push((Dir::new(dir.into_std_file(), FsPerms::ReadOnly, OpenMode::READ, false), place));
        Ok(())
    }

    /// Gives every instance a directory of its own.
    pub(crate) fn scratch(&mut self, mib: u64, files: u64) -> io::Result<()> {
        let roots = Arc::new(Roots::new()?);
        self.scratch = Some(Scratch { bytes: mib.saturating_mul(1 << 20), files, roots });
        Ok(())
    }

    pub(crate) fn show_times(&mut self) {
        self.times = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.scratch.is_none()
    }

    pub(crate) fn state(self: &Arc<Self>) -> FileState {
        let (bytes, files) = self.scratch.as_ref().map_or((0, 0), |scratch| (scratch.bytes, scratch.files));
        FileState {
            directories: self.clone(),
            books: Books::new(bytes, files),
            handles: HashMap::new(),
            listings: HashMap::new(),
            numbers: HashMap::new(),
            numbered: 0,
            context: WasiFilesystemCtx::default(),
            scratch: None,
        }
    }
}

/// What is left of a directory's entries, by name.
pub(super) struct Listing {
    pub(super) entries: std::vec::IntoIter<FsResult<DirectoryEntry>>,
    pub(super) _handle: Handle,
}

/// The files of one instance.
pub(crate) struct FileState {
    directories: Arc<Directories>,
    pub(super) books: Books,
    /// By descriptor.
    pub(super) handles: HashMap<u32, Handle>,
    pub(super) listings: HashMap<u32, Listing>,
    /// What the guest sees in place of a hash of device and inode, which are the machine's.
    numbers: HashMap<(u64, u64), u64>,
    numbered: u64,
    pub(super) context: WasiFilesystemCtx,
    /// Made when the guest first asks what it has.
    scratch: Option<(ScratchDir, Dir)>,
}

impl FileState {
    /// The directories that may be read, with the places where the guest sees them.
    pub(super) fn read(&self) -> &[(Dir, String)] {
        &self.directories.read
    }

    pub(super) fn shows_times(&self) -> bool {
        self.directories.times
    }

    /// The number of a file or directory: the first that is asked for is 1.
    pub(super) fn number(&mut self, hash: MetadataHashValue) -> MetadataHashValue {
        let number = self.numbers.entry((hash.lower, hash.upper)).or_insert_with(|| {
            self.numbered += 1;
            self.numbered
        });
        MetadataHashValue { lower: *number, upper: 0 }
    }

    /// What was removed has no number any more: the next one in its place may have the same inode.
    pub(super) fn forget(&mut self, hash: Option<MetadataHashValue>) {
        hash.and_then(|hash| self.numbers.remove(&(hash.lower, hash.upper)));
    }

    pub(super) fn has_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// The private directory, if there is one.
    pub(super) fn scratch(&mut self) -> wasmtime::Result<Option<Dir>> {
        let Some(scratch) = &self.directories.scratch else { return Ok(None) };
        if self.scratch.is_none() {
            let made = ScratchDir::new(&scratch.roots)?;
            let file = cap_std::fs::Dir::open_ambient_dir(made.path(), ambient_authority())?.into_std_file();
            let dir = Dir::new(file, FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE, false);
            self.scratch = Some((made, dir));
        }
        Ok(self.scratch.as_ref().map(|(_, dir)| dir.clone()))
    }
}
