//! Rust: cargo makes the component by itself.

use crate::error::{AuthorError, OrAuthor};
use crate::project::Project;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TARGET: &str = "wasm32-wasip2";

pub(super) fn build(project: &Project, out: &Path) -> Result<(), AuthorError> {
    check_target(&project.dir)?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&project.dir).args(["build", "--lib", "--release", "--target", TARGET]);
    cargo.arg("--message-format=json-render-diagnostics");
    // The compiler's messages go to the terminal as they come.
    let output = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .or_user("cargo cannot be started", "install Rust with rustup")?;
    if !output.status.success() {
        // It says so of a build that had begun.
        let help = if String::from_utf8_lossy(&output.stdout).contains("build-finished") {
            "the compiler says above what is wrong"
        } else {
            "cargo says above what is wrong; without a network, it needs packages that it has downloaded before"
        };
        return Err(AuthorError::failed(format!("{} does not compile", project.name), help));
    }
    let Some(wasm) = artifact(&String::from_utf8_lossy(&output.stdout)) else {
        let help = "its Cargo.toml needs [lib] crate-type = [\"cdylib\", \"rlib\"]";
        return Err(AuthorError::failed("cargo made no component", help));
    };
    std::fs::copy(&wasm, out)
        .map(drop)
        .or_failed(format!("cannot copy {}", wasm.display()), "free space in the project's directory")
}

/// Whether the compiler that the project uses has the target.
fn check_target(dir: &Path) -> Result<(), AuthorError> {
    let help = "install Rust with rustup";
    let output = Command::new("rustc")
        .current_dir(dir)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .or_user("rustc cannot be started", help)?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && libraries.is_dir() {
        return Ok(());
    }
    Err(AuthorError::user(
        format!("this compiler cannot build for {TARGET}"),
        format!("add the target: rustup target add {TARGET}"),
    ))
}

/// The last component among the files that cargo reports: that of the package itself, after its dependencies.
fn artifact(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut files = messages.filter(|message| message["reason"] == "compiler-artifact").flat_map(|message| {
        let files = message["filenames"].as_array().cloned().unwrap_or_default();
        files.into_iter().filter_map(|file| file.as_str().map(PathBuf::from))
    });
    files.rfind(|file| file.extension().is_some_and(|extension| extension == "wasm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_is_the_packages_own() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/t/libserde.rlib"]}
not JSON
{"reason":"compiler-artifact","filenames":["/t/libbrevity.rlib","/t/brevity.wasm"]}
{"reason":"build-finished","success":true}"#;
        assert_eq!(artifact(messages), Some("/t/brevity.wasm".into()));
        assert_eq!(artifact("{}"), None);
    }
}
