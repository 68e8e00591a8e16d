//! An OCI registry server for the tests of `molt plugin push` and `pull`: Debian's package, without root.

use crate::cache::Cache;
use crate::{fetch, process};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "docker-registry";
const VERSION: &str = "2.8.2+ds1-1";
const SHA256: &str = "a9bd06c0e006854608f8469b4371743f40604ad90975532bb3b7ceeb72fe2913";

/// The server's binary in the cache, fetched on the first call. The tests look for it at the same place.
pub(crate) fn registry(cache: &Cache) -> Result<PathBuf> {
    let binary = cache.registry().join(PACKAGE);
    let _lock = cache.lock()?;
    if binary.is_file() {
        return Ok(binary);
    }
    fetch_package(&cache.registry()).with_context(|| {
        format!(
            "the registry server for the tests is Debian's package {PACKAGE} {VERSION}, fetched by apt-get (no root \
             needed); elsewhere set MOLT_TEST_REGISTRY to a binary of version 2.8"
        )
    })?;
    Ok(binary)
}

fn fetch_package(folder: &Path) -> Result<()> {
    let part = folder.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("cannot remove {}", part.display()))?;
    }
    for inside in ["cache/archives/partial", "state/lists/partial", "unpacked"] {
        let path = part.join(inside);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    }
    eprintln!("fetching {PACKAGE} {VERSION}");
    let wanted = format!("{PACKAGE}={VERSION}");
    // The machine's own package lists if it has them, else lists of our own.
    if process::output(apt(&part, false).args(["download", &wanted])).is_err() {
        process::output(apt(&part, true).arg("update"))?;
        process::output(apt(&part, true).args(["download", &wanted]))?;
    }
    let package = package_in(&part)?;
    let found = fetch::sha256(&package, "verifying")?;
    if found != SHA256 {
        bail!("{PACKAGE} {VERSION}: expected sha256 {SHA256}, downloaded {found}");
    }
    process::output(Command::new("dpkg").arg("-x").arg(&package).arg(part.join("unpacked")))?;
    fs::rename(part.join("unpacked/usr/bin").join(PACKAGE), part.join(PACKAGE))
        .with_context(|| format!("the package holds no {PACKAGE}"))?;
    for done in ["cache", "state", "unpacked"] {
        fs::remove_dir_all(part.join(done)).with_context(|| format!("cannot clean {}", part.display()))?;
    }
    fs::remove_file(&package).with_context(|| format!("cannot remove {}", package.display()))?;
    fs::rename(&part, folder).with_context(|| format!("cannot write {}", folder.display()))
}

/// apt-get that writes nowhere but below `folder`.
fn apt(folder: &Path, own_lists: bool) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").current_dir(folder);
    command.arg("-o").arg(format!("Dir::Cache={}", folder.join("cache").display()));
    command.args(["-o", "Debug::NoLocking=1"]);
    if own_lists {
        command.arg("-o").arg(format!("Dir::State={}", folder.join("state").display()));
    }
    command
}

/// The one package file in `folder`, whose name writes the version in its own way.
fn package_in(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut packages = entries.flatten().map(|entry| entry.path());
    packages.find(|path| path.extension().is_some_and(|e| e == "deb")).context("apt-get brought no package")
}
