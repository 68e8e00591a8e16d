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
    /// The demo and training do without it.
    optional: bool,
}

/// Prints the table; exit code 1 if something is missing.
pub(crate) fn doctor() -> Result<ExitCode> {
    let rows = examine(&Cache::locate()?);
    print!("{}", table(&rows));
    let missing = rows.iter().filter(|row| row.found.is_none() && !row.optional).count();
    if missing == 0 {
        println!("everything is there that the demo and training need");
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
    let row = |what, found, remedy: &str| Row { what, found, remedy: remedy.to_owned(), optional: false };
    let optional = |what, found, remedy| Row { optional: true, ..row(what, found, remedy) };
    let npm = first_line("npm", &["--version"]);
    let node = first_line("node", &["--version"]).filter(|version| major(version) >= Some(20));
    let debian = [first_line("apt-get", &["--version"]), first_line("dpkg", &["--version"])];
    let registry = std::env::var("MOLT_TEST_REGISTRY")
        .ok()
        .or_else(|| debian.into_iter().collect::<Option<Vec<_>>>()?.pop());
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
            "it fetches libtorch, and makes plugins in Python, C and Go; on Debian: apt install python3-pip",
        ),
        optional(
            "Node.js with npm",
            node.zip(npm).map(|(node, npm)| format!("{node} with npm {npm}")),
            "for plugins in JavaScript and TypeScript, and for the tests: install Node.js 20 or newer",
        ),
        optional(
            "apt-get and dpkg",
            registry,
            "for the tests of push and pull: elsewhere set MOLT_TEST_REGISTRY to a registry server of version 2.8",
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

/// 20 of `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    rows.iter()
        .map(|Row { what, found, remedy, optional }| match found {
            Some(found) => format!("ok       {what:<width$}  {found}\n"),
            None if *optional => format!("not here {what:<width$}  {remedy}\n"),
            None => format!("MISSING  {what:<width$}  {remedy}\n"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_missing_and_how_to_get_it() {
        let row = |what, found: Option<&str>, remedy: &str, optional| Row {
            what,
            found: found.map(str::to_owned),
            remedy: remedy.to_owned(),
            optional,
        };
        let rows = [
            row("Rust", Some("rustc 1.95.0"), "install rustup", false),
            row("libtorch", None, "cargo xtask setup", false),
            row("Node.js", None, "for the tests: install it", true),
        ];
        let expected = "ok       Rust      rustc 1.95.0\nMISSING  libtorch  cargo xtask setup\nnot here Node.js   for the tests: install it\n";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn the_major_version_of_node_is_read() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!((major("20.1"), major("v"), major("")), (None, None, None));
    }
}
