//! Files and directories that are whole after a power cut: what is renamed into place is on the disk before.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Removes a directory that may not be there.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file, onto the disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Has everything below a directory on the disk, and the names in it.
pub(crate) fn flush(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { flush(&path)? } else { File::open(&path)?.sync_all()? }
    }
    File::open(dir)?.sync_all()
}

/// Puts the complete directory `part` at `place`. One that is there is called `old`, in the same folder, until then.
pub(crate) fn replace(part: &Path, place: &Path, old: &Path) -> io::Result<()> {
    flush(part)?;
    remove(old)?;
    match fs::rename(place, old) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => fs::rename(part, place)?,
    }
    let folder = place.parent().ok_or(ErrorKind::InvalidFilename)?;
    File::open(folder)?.sync_all()?;
    let _ = remove(old); // what stays of it is in nobody's way: the next call begins with this
    Ok(())
}
