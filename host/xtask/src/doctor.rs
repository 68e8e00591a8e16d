//! What this machine has of what Molt needs, and how to get the rest. Changes nothing.

use crate::cache::Cache;
use crate::{plugins, process, setup};
use anyhow::Result;
use std::process::{Command, ExitCode};

/// One thing that is needed.
struct Row {
    what: &'static str,
    /// What was found, or nothing.
    found: Option<String>,
    remedy: String,
}

/// Prints the table; exit code 1 if something is missing.
pub(crate) fn doctor() -> Result<ExitCode> {
    let rows = examine(&Cache::locate()?);
    print!("{}", table(&rows));
    let missing = rows.iter().filter(|row| row.found.is_none()).count();
    if missing == 0 {
        println!("everything is there");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{missing} missing");
    Ok(ExitCode::from(1))
}

fn examine(cache: &Cache) -> Vec<Row> {
    let first_line = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let text = process::output(command.args(arguments).current_dir(process::workspace_root())).ok()?;
        text.lines().next().map(str::to_owned)
    };
    let row = |what, found, remedy: &str| Row { what, found, remedy: remedy.to_owned() };
    let free = setup::free_bytes(cache.root());
    let libtorch = setup::libtorch_installed(&cache.libtorch());
    let needed = if libtorch { setup::DISK_BYTES / 2 } else { setup::DISK_BYTES };
    let built = plugins::shipped().unwrap_or_default();
    let absent =
        built.iter().filter(|name| !cache.target().join(format!("plugins/{name}.wasm")).is_file()).count();
    let platform = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let platform_fits = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let settings = process::workspace_root().join(".cargo/local.toml");
    let gpu = first_line("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"]);
    vec![
        row("platform", platform_fits.then_some(platform), "Linux on x86-64 is the only platform so far"),
        row(
            "Rust",
            first_line("rustc", &["--version"]),
            "install rustup; rust-toolchain.toml chooses the version",
        ),
        row(
            "wasm32-wasip2",
            setup::wasm_target_installed().unwrap_or(false).then(|| "installed".into()),
            "rustup target add wasm32-wasip2",
        ),
        row("C++ compiler", setup::compiler(), "on Debian: apt install g++"),
        row(
            "python3 with pip",
            first_line("python3", &["-m", "pip", "--version"]),
            "only to fetch packages; on Debian: apt install python3-pip",
        ),
        row(
            "disk space",
            free.filter(|free| *free >= needed).map(|free| format!("{:.0} GB free", free as f64 / 1e9)),
            &format!("{:.0} GB at {}; XDG_CACHE_HOME moves it", needed as f64 / 1e9, cache.root().display()),
        ),
        row("libtorch", libtorch.then(|| cache.libtorch().display().to_string()), "cargo xtask setup"),
        row(
            "cargo settings",
            settings.is_file().then(|| settings.display().to_string()),
            "cargo xtask setup",
        ),
        row(
            "RUSTFLAGS",
            std::env::var_os("RUSTFLAGS").is_none().then(|| "not set".into()),
            "unset it for plain cargo: it hides the flags by which programs find libtorch",
        ),
        row(
            "plugins",
            (absent == 0 && !built.is_empty()).then(|| format!("{} built", built.len())),
            "cargo xtask plugins",
        ),
        row("GPU", Some(gpu.map_or("none needed".into(), |name| format!("{name} (not used yet)"))), ""),
    ]
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    rows.iter()
        .map(|Row { what, found, remedy }| match found {
            Some(found) => format!("ok       {what:<width$}  {found}\n"),
            None => format!("MISSING  {what:<width$}  {remedy}\n"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_missing_and_how_to_get_it() {
        let rows = [
            Row { what: "Rust", found: Some("rustc 1.95.0".into()), remedy: "install rustup".into() },
            Row { what: "libtorch", found: None, remedy: "cargo xtask setup".into() },
        ];
        assert_eq!(table(&rows), "ok       Rust      rustc 1.95.0\nMISSING  libtorch  cargo xtask setup\n");
    }
}
