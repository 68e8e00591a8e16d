//! The environment of what benchmarks compare with: PyTorch, in a directory of the cache that nothing else needs.

use crate::cache::{Cache, LIBTORCH};
use crate::{process, setup};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What the installed packages and pip's downloads take.
const DISK_BYTES: u64 = 9_000_000_000;

const REQUIREMENTS: &str = "host/trainer/benches/train/requirements.txt";

/// Installs the packages if they are not there, whole or not at all; returns their directory, for `PYTHONPATH`.
pub(crate) fn pytorch(cache: &Cache) -> Result<PathBuf> {
    let requirements = process::workspace_root().join(REQUIREMENTS);
    let text = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    if !text.lines().any(|line| line == format!("torch=={LIBTORCH}")) {
        bail!("{REQUIREMENTS} must pin the version of libtorch, torch=={LIBTORCH}");
    }
    let dir = cache.root().join(format!("peer-{LIBTORCH}"));
    // Last written: its presence, and that it is the same, says that the directory is whole.
    let installed = dir.join("requirements.txt");
    let _lock = cache.lock()?;
    if fs::read_to_string(&installed).is_ok_and(|found| found == text) {
        return Ok(dir);
    }
    if let Some(free) = setup::free_bytes(cache.root())
        && free < DISK_BYTES
    {
        bail!(
            "{} has {:.1} GB free; PyTorch for the comparison needs about {:.0} GB there",
            cache.root().display(),
            free as f64 / 1e9,
            DISK_BYTES as f64 / 1e9,
        );
    }
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    eprintln!("installing PyTorch {LIBTORCH} and transformers for the comparison, once …");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]);
    // The wheel of libtorch fits if this is the Python that it was made for.
    pip.args(["--only-binary", ":all:", "--no-cache-dir", "--find-links"]).arg(cache.wheels());
    pip.arg("--target").arg(&dir).arg("--requirement").arg(&requirements);
    process::run(&mut pip).context("python3 (3.10 or newer) with pip is needed for the comparison")?;
    fs::copy(&requirements, &installed).with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(dir)
}
