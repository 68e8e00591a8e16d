//! Pinned tools of other languages, installed once per user by the language's own package manager.

use crate::error::{AuthorError, OrAuthor};
use crate::open;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A tool that is installed: a directory of its own in the user's cache.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub(super) dir: PathBuf,
}

/// A tool of the Python package index: exactly the files whose hashes are in `requirements`. Its programs run through
/// [`Tool::python`] or lie in `bin/`.
pub(super) fn pinned((name, version, requirements): (&str, &str, &str)) -> Result<Tool, AuthorError> {
    ensure(name, version, |dir| {
        let file = dir.join("requirements.txt");
        fs::write(&file, requirements)
            .or_failed(format!("cannot write to {}", dir.display()), "free space there")?;
        let mut pip = pip(dir);
        pip.args(["--require-hashes", "--only-binary", ":all:", "--requirement"]).arg(file);
        let help = "install python3 with pip (on Debian: apt install python3-pip); if hashes do not match, the index \
                    that pip uses sends something else";
        execute(&mut pip, help)
    })
}

/// Packages that a project asks for, by arguments of pip.
pub(super) fn packages(name: &str, version: &str, arguments: &[&str]) -> Result<Tool, AuthorError> {
    ensure(name, version, |dir| {
        execute(pip(dir).args(arguments), "install python3 with pip (on Debian: apt install python3-pip)")
    })
}

fn pip(dir: &Path) -> Command {
    let mut pip = Command::new("python3");
    // Python looks for modules in the current directory first: here it is an empty one.
    pip.current_dir(dir).env("PYTHONSAFEPATH", "1");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]);
    pip.arg("--target").arg(dir);
    pip
}

/// Packages of npm, exactly those of `files`, which are package.json and package-lock.json. They lie in
/// `node_modules`.
pub(super) fn npm(name: &str, version: &str, files: &[(&str, &str)]) -> Result<Tool, AuthorError> {
    ensure(name, version, |dir| {
        for (file, contents) in files {
            fs::write(dir.join(file), contents)
                .or_failed(format!("cannot write to {}", dir.display()), "free space there")?;
        }
        let mut npm = Command::new("npm");
        npm.current_dir(dir).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
        execute(&mut npm, "install Node.js 20 or newer with npm")
    })
}

impl Tool {
    /// Python with the tool's packages on its path, run in `dir`: nothing else may lie there, as Python looks for
    /// modules in the current directory first.
    pub(super) fn python(&self, dir: &Path) -> Command {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &self.dir).env("PYTHONSAFEPATH", "1").current_dir(dir);
        python
    }
}

/// The directory `tools/NAME-VERSION` of the user's cache, filled by `install` if it is not there. It appears whole
/// or not at all; of two processes at once, one installs and the other waits.
fn ensure(
    name: &str,
    version: &str,
    install: impl FnOnce(&Path) -> Result<(), AuthorError>,
) -> Result<Tool, AuthorError> {
    let Some(cache) = open::cache_dir() else {
        return Err(AuthorError::user("there is no place for tools", "set HOME or XDG_CACHE_HOME"));
    };
    ensure_in(&cache.join("tools"), &format!("{name}-{version}"), install)
}

fn ensure_in(
    tools: &Path,
    full: &str,
    install: impl FnOnce(&Path) -> Result<(), AuthorError>,
) -> Result<Tool, AuthorError> {
    let dir = tools.join(full);
    if dir.is_dir() {
        return Ok(Tool { dir });
    }
    let unusable = || format!("{full} cannot be installed in {}", tools.display());
    let help = "free space there, make it writable, or set XDG_CACHE_HOME";
    fs::create_dir_all(tools).or_failed(unusable(), help)?;
    // The lock goes when the file is closed, also at the end of a process that was killed.
    let lock = File::create(tools.join(format!(".{full}.lock"))).or_failed(unusable(), help)?;
    lock.lock().or_failed(unusable(), help)?;
    if dir.is_dir() {
        return Ok(Tool { dir });
    }
    eprintln!("installing {full}, once …");
    let part = tempfile::Builder::new().prefix(".part").tempdir_in(tools).or_failed(unusable(), help)?;
    install(part.path())?;
    fs::rename(part.path(), &dir).or_failed(unusable(), help)?;
    Ok(Tool { dir })
}

/// Runs a command to its end. Its output is shown only if it fails.
pub(super) fn execute(command: &mut Command, help: &str) -> Result<(), AuthorError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().or_user(format!("{program} cannot be started"), help)?;
    if output.status.success() {
        return Ok(());
    }
    let printed = [output.stdout, output.stderr].concat();
    Err(AuthorError {
        because: vec![String::from_utf8_lossy(&printed).trim().to_owned()],
        ..AuthorError::failed(format!("{program} failed ({})", output.status), help)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use crate::build::{c, go, js, python};
    use serde_json::Value;

    #[test]
    fn every_tool_is_pinned_by_what_its_files_are() {
        for (name, version, requirements) in [c::PINNED, go::PINNED, python::PINNED] {
            let all: Vec<&str> = requirements.lines().filter(|line| !line.starts_with('#')).collect();
            let (first, hashes) = all.split_first().unwrap();
            assert_eq!(first.trim_end_matches(" \\"), format!("{name}=={version}"));
            assert!(hashes.len() >= 4, "{name}: Linux and macOS, each on two kinds of processor");
            assert!(hashes.iter().all(|line| line.trim().starts_with("--hash=sha256:")), "{requirements}");
        }
        let (_, lock) = js::PACKAGES[1];
        let lock: Value = serde_json::from_str(lock).unwrap();
        let packages = lock["packages"].as_object().unwrap();
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert!(package["integrity"].as_str().unwrap().starts_with("sha512-"), "{name}");
            assert!(package.get("resolved").is_none(), "{name}: it comes from the user's registry");
        }
        assert_eq!(packages[&format!("node_modules/{}", js::TOOLS.0)]["version"], js::TOOLS.1);
    }
}
