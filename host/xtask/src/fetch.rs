//! Pinned packages into the cache: found by pip, resumed where they stopped, verified before use.
//!
//! pip is the one client, with the user's own index, proxy and certificates. The pinned pip below says
//! where a package lies, and its session fetches the bytes, from the middle of a file if need be.

use crate::process;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A package file, pinned by its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The platform tag to ask for.
    pub(crate) platform: &'static str,
    pub(crate) file: &'static str,
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
}

/// Ranged downloads and `--report` need a recent pip: this one runs from its wheel, nothing is installed.
const PIP: Wheel = Wheel {
    package: "pip",
    version: "25.3",
    platform: "any",
    file: "pip-25.3-py3-none-any.whl",
    bytes: 1_778_622,
    sha256: "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd",
};

/// Appends the rest of URL (argument 1) to a file (argument 2), through the session of the pinned pip.
const FETCH: &str = r#"
import os, sys
from pip._internal.commands.download import DownloadCommand
url, path = sys.argv[1:]
command = DownloadCommand("download", "")
options, _ = command.parse_args(["--no-cache-dir"])
with command.main_context():
    session = command.get_default_session(options)
    have = os.path.getsize(path) if os.path.exists(path) else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with session.get(url, headers=headers, stream=True) as answer:
        answer.raise_for_status()
        with open(path, "ab" if answer.status_code == 206 else "wb") as file:
            for block in answer.iter_content(1 << 18):
                file.write(block)
"#;

const ATTEMPTS: u32 = 5;

/// Makes sure that every wheel lies in `folder` with the pinned bytes; returns their paths in order.
pub(crate) fn fetch(folder: &Path, wheels: &[Wheel]) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut paths = Vec::new();
    for wheel in wheels {
        let path = folder.join(wheel.file);
        if !present(&path, wheel)? {
            let pip = pip(folder)?;
            let part = folder.join(format!("{}.part", wheel.file));
            download(&pip, wheel, &part)?;
            fs::rename(&part, &path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        paths.push(path);
    }
    Ok(paths)
}

/// Whether a finished download is there; one whose bytes are not the pinned ones is removed.
fn present(path: &Path, wheel: &Wheel) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let whole = fs::metadata(path).is_ok_and(|data| data.len() == wheel.bytes);
    if whole && sha256(path, &format!("verifying {}", wheel.file))? == wheel.sha256 {
        return Ok(true);
    }
    eprintln!("{} is damaged; fetching it again", path.display());
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(false)
}

fn download(pip: &Path, wheel: &Wheel, part: &Path) -> Result<()> {
    let url = locate(pip, wheel)?;
    let mut failure = String::new();
    let mut resumed = length(part) > 0;
    for attempt in 1..=ATTEMPTS {
        if length(part) < wheel.bytes {
            failure = transfer(pip, &url, wheel, part)?;
        }
        if length(part) >= wheel.bytes {
            let found = sha256(part, &format!("verifying {}", wheel.file))?;
            if found == wheel.sha256 {
                return Ok(());
            }
            fs::remove_file(part).with_context(|| format!("cannot remove {}", part.display()))?;
            failure = format!("expected sha256 {}, downloaded {found}", wheel.sha256);
            if !std::mem::take(&mut resumed) {
                bail!("{}: {failure}", wheel.file);
            }
        }
        let last = failure.lines().last().unwrap_or("the connection closed early");
        eprintln!("{}: attempt {attempt} of {ATTEMPTS}: {last}", wheel.file);
    }
    bail!(
        "could not fetch {}; what has arrived is kept, run the same command again to go on from there",
        wheel.file
    )
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |data| data.len())
}

/// One connection; returns what went wrong, empty if nothing did.
fn transfer(pip: &Path, url: &str, wheel: &Wheel, part: &Path) -> Result<String> {
    let bar = bytes_bar(wheel.bytes, &format!("fetching {}", wheel.file));
    bar.set_position(length(part));
    bar.reset_eta();
    let mut child = python(pip)
        .args(["-c", FETCH, url])
        .arg(part)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start python3")?;
    let mut stderr = child.stderr.take().context("cannot read what python3 says")?;
    // Read meanwhile: a child that has filled its pipe would wait for ever.
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        stderr.read_to_end(&mut said).map(|_| said)
    });
    while child.try_wait().context("cannot wait for python3")?.is_none() {
        std::thread::sleep(Duration::from_millis(100));
        bar.set_position(length(part));
    }
    bar.finish_and_clear();
    let said = reader.join().ok().and_then(Result::ok).unwrap_or_default();
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

/// Where the pinned file lies, asked of pip; nothing is downloaded or installed.
fn locate(pip: &Path, wheel: &Wheel) -> Result<String> {
    let mut command = python(pip);
    command.args(["-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]);
    command
        .args(["--report", "-", "--only-binary=:all:", "--no-cache-dir", "--target"])
        .arg(pip.with_extension("none"));
    command.args(["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"]);
    command.args(["--platform", wheel.platform, &format!("{}=={}", wheel.package, wheel.version)]);
    let report = process::output(&mut command)?;
    url_in(&report, wheel.file).with_context(|| {
        format!("the package index offers no {}; is it a mirror that lacks {}?", wheel.file, wheel.package)
    })
}

/// The download URL of `file` in pip's installation report.
fn url_in(report: &str, file: &str) -> Option<String> {
    let report: serde_json::Value = serde_json::from_str(report).ok()?;
    let url = report.get("install")?.get(0)?.get("download_info")?.get("url")?.as_str()?;
    url.split(['?', '#']).next()?.ends_with(file).then(|| url.to_owned())
}

/// The pinned pip; whatever pip the machine has fetches it.
fn pip(folder: &Path) -> Result<PathBuf> {
    let path = folder.join(PIP.file);
    if !present(&path, &PIP)? {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        command.args(["--only-binary=:all:", "--dest"]).arg(folder);
        process::output(command.arg(format!("{}=={}", PIP.package, PIP.version)))
            .context("python3 with pip is needed to fetch packages (on Debian: apt install python3-pip)")?;
        if !present(&path, &PIP)? {
            bail!("pip did not bring {} with the pinned bytes", PIP.file);
        }
    }
    Ok(path)
}

fn python(pip: &Path) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", pip).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    command
}

/// The SHA-256 of a file in lower-case hexadecimal, with a progress bar for large ones.
pub(crate) fn sha256(path: &Path, label: &str) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let bar = bytes_bar(length(path), label);
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut block).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            break;
        }
        hash.update(&block[..read]);
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(hex(&hash.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A bar on a terminal; one plain line elsewhere.
pub(crate) fn bytes_bar(total: u64, label: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(label.to_owned());
    if bar.is_hidden() && total > 16 << 20 {
        eprintln!("{label} ({} MB)", total / 1_000_000);
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.with_style(style.expect("invariant: the template is well-formed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wheel(bytes: u64, sha256: &'static str) -> Wheel {
        Wheel { package: "p", version: "1", platform: "any", file: "p-1.whl", bytes, sha256 }
    }

    #[test]
    fn only_the_pinned_bytes_count_as_present() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("p-1.whl");
        // The digest of "abc" is the first example of FIPS 180-2.
        let pinned = wheel(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(!present(&path, &pinned).expect("absent"));
        fs::write(&path, "abc").expect("writable");
        assert!(present(&path, &pinned).expect("readable"));
        fs::write(&path, "abd").expect("writable");
        assert!(!present(&path, &pinned).expect("readable"));
        assert!(!path.exists(), "a damaged file is removed");
    }

    #[test]
    fn the_report_must_name_the_pinned_file() {
        let report = r#"{"install":[{"download_info":{"url":"scheme://host/a/p-1.whl#sha256=0"}}]}"#;
        assert_eq!(url_in(report, "p-1.whl").as_deref(), Some("scheme://host/a/p-1.whl#sha256=0"));
        assert_eq!(url_in(report, "q-1.whl"), None);
        assert_eq!(url_in(r#"{"install":[]}"#, "p-1.whl"), None);
        assert_eq!(url_in("not json", "p-1.whl"), None);
    }
}
