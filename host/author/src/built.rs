//! Which components were built on this machine, by their digests.
//!
//! Only they are asked for source lines when they crash: debug information is read by code that trusts a compiler to
//! have written it, outside of every limit. Where a file lies says nothing, as projects too come from strangers.

use crate::open;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Notes that `build` made the component with this digest. Without a place for the note, crashes are told without
/// lines, and nothing else changes.
pub(crate) fn note(digest: &str) -> io::Result<()> {
    let Some(file) = place(digest) else { return Ok(()) };
    fs::create_dir_all(file.parent().unwrap_or(&file))?;
    fs::write(file, "")
}

/// Whether `build` made it, and on this machine.
pub(crate) fn here(digest: &str) -> bool {
    place(digest).is_some_and(|file| file.is_file())
}

/// An empty file per component in the user's cache.
fn place(digest: &str) -> Option<PathBuf> {
    Some(open::cache_dir()?.join("built").join(digest.strip_prefix("sha256:")?))
}
