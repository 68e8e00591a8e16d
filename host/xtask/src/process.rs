//! Other programs: cargo with the environment it needs, and whatever else is on the path.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The checkout that this command was started from.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.ancestors().nth(2).map_or_else(|| manifest.clone(), |root| root.to_path_buf())
}

/// Cargo in the workspace root. It reads `LIBTORCH` from `.cargo/local.toml`, and not from what the
/// outer `cargo xtask` put into the environment before that file was written. `RUSTFLAGS` would hide the flags
/// by which programs find libtorch.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace_root()).env_remove("LIBTORCH").env_remove("RUSTFLAGS");
    // `cargo xtask` runs with these of xtask's package, and build scripts that look at them would run again whenever
    // cargo is called by hand, and all that depends on them be compiled again.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs with the terminal attached; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs and returns what it printed; what it said on stderr goes into the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", shown(command), output.status, said.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed bytes that are no text", shown(command)))
}

/// The command as one would type it, arguments that span lines left out.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).filter(|word| !word.contains('\n')).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_command_and_what_it_said() {
        let error =
            output(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"])).expect_err("exit 3");
        let text = format!("{error:#}");
        assert!(text.contains("sh -c") && text.contains("no such thing") && text.contains('3'), "{text}");
        assert!(run(&mut Command::new("/nonexistent/program")).is_err());
    }

    #[test]
    fn the_workspace_root_holds_the_workspace() {
        assert!(workspace_root().join("wit").is_dir());
    }
}
