//! Brings a fresh machine to where plain `cargo build` works. Everything already there is left alone.

use crate::cache::{Cache, LIBTORCH, write_if_changed};
use crate::fetch::{self, Wheel};
use crate::process;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use zip::ZipArchive;

/// The target that plugins are built for.
pub(crate) const WASM_TARGET: &str = "wasm32-wasip2";

/// What a fresh set-up and the build after it take: downloads, libtorch, build output.
pub(crate) const DISK_BYTES: u64 = 8_000_000_000;

const TORCH: Wheel = Wheel {
    package: "torch",
    version: LIBTORCH,
    platform: "manylinux_2_28_x86_64",
    file: "torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    bytes: 526_605_292,
    sha256: "796633c4cdf0fe2cdced72d8f88f22e73dbcfce83132763162f6d4bff13b820b",
};

/// `libtorch_cpu.so` is linked against the CUDA runtime and its profiler, also where there is no GPU.
const CUDA_RUNTIME: Wheel = Wheel {
    package: "nvidia-cuda-runtime",
    version: "13.0.96",
    platform: "manylinux2014_x86_64",
    file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    bytes: 2_243_632,
    sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
};

const CUDA_PROFILER: Wheel = Wheel {
    package: "nvidia-cuda-cupti",
    version: "13.0.85",
    platform: "manylinux_2_25_x86_64",
    file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
    bytes: 10_715_597,
    sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
};

/// The libraries to take, by wheel (in the order of `libtorch`) and path inside it.
const LIBRARIES: [(usize, &str); 5] = [
    (0, "torch/lib/libc10.so"),
    (0, "torch/lib/libgomp.so.1"),
    (0, "torch/lib/libtorch_cpu.so"),
    (1, "nvidia/cu13/lib/libcudart.so.13"),
    (2, "nvidia/cu13/lib/libcupti.so.13"),
];

/// Idempotent; every other command calls it first.
pub(crate) fn setup() -> Result<Cache> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("only Linux on x86-64 is supported so far");
    }
    let cache = Cache::locate()?;
    let _lock = cache.lock()?;
    if compiler().is_none() {
        bail!("no C++ compiler (c++ or g++) on the path; on Debian: apt install g++");
    }
    if !wasm_target_installed()? {
        process::run(
            Command::new("rustup")
                .args(["target", "add", WASM_TARGET])
                .current_dir(process::workspace_root()),
        )
        .with_context(|| format!("the Rust target {WASM_TARGET} is missing and could not be added"))?;
    }
    if !libtorch_installed(&cache.libtorch()) {
        libtorch(&cache)?;
    }
    let settings = process::workspace_root().join(".cargo/local.toml");
    if write_if_changed(&settings, local_toml(&cache.target(), &cache.libtorch())?.as_bytes())? {
        eprintln!("wrote {}", settings.display());
    }
    Ok(cache)
}

/// The version line of the C++ compiler that builds the bindings of libtorch.
pub(crate) fn compiler() -> Option<String> {
    let named = std::env::var_os("CXX").into_iter().chain(["c++".into(), "g++".into()]);
    named.into_iter().find_map(|name| {
        let text = process::output(Command::new(name).arg("--version")).ok()?;
        text.lines().next().map(str::to_owned)
    })
}

pub(crate) fn wasm_target_installed() -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--print", "sysroot"]).current_dir(process::workspace_root());
    let sysroot = process::output(&mut command)?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(WASM_TARGET).join("lib").is_dir())
}

pub(crate) fn libtorch_installed(folder: &Path) -> bool {
    fs::read_to_string(folder.join("build-version")).is_ok_and(|version| version.trim() == LIBTORCH)
        && LIBRARIES.iter().all(|(_, path)| folder.join("lib").join(name_of(path)).is_file())
}

fn libtorch(cache: &Cache) -> Result<()> {
    if let Some(free) = free_bytes(cache.root())
        && free < DISK_BYTES
    {
        bail!(
            "{} has {:.1} GB free; libtorch and the build need about {:.0} GB. Free some, or point \
             XDG_CACHE_HOME to a larger disk",
            cache.root().display(),
            free as f64 / 1e9,
            DISK_BYTES as f64 / 1e9,
        );
    }
    if Path::new("/proc/driver/nvidia").exists() {
        eprintln!(
            "this machine has an NVIDIA GPU; this version computes on the CPU and fetches libtorch for that"
        );
    }
    let wheels = fetch::fetch(&cache.wheels(), &[TORCH, CUDA_RUNTIME, CUDA_PROFILER])?;
    let (part, target) = (cache.root().join("libtorch.part"), cache.libtorch());
    for stale in [&part, &target] {
        if stale.exists() {
            fs::remove_dir_all(stale).with_context(|| format!("cannot remove {}", stale.display()))?;
        }
    }
    unpack(&wheels, &part)?;
    fs::rename(&part, &target).with_context(|| format!("cannot write {}", target.display()))
}

/// Lays the headers and the CPU libraries of the wheels out as a libtorch folder.
fn unpack(wheels: &[PathBuf], folder: &Path) -> Result<()> {
    let lib = folder.join("lib");
    fs::create_dir_all(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    let mut archives = Vec::new();
    for path in wheels {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        archives.push(
            ZipArchive::new(BufReader::new(file))
                .with_context(|| format!("{} is no wheel", path.display()))?,
        );
    }
    let names: Vec<_> =
        archives[0].file_names().collect::<Result<_, _>>().context("the torch wheel is damaged")?;
    let headers: Vec<String> =
        names.iter().filter(|n| header(n).is_some()).map(ToString::to_string).collect();
    drop(names);
    let bar = fetch::bytes_bar(0, "unpacking libtorch");
    bar.set_length((headers.len() + LIBRARIES.len()) as u64);
    bar.set_style(bar_of_files());
    for name in headers {
        if let Some(inside) = header(&name) {
            extract(&mut archives[0], &name, &folder.join("include").join(inside))?;
        }
        bar.inc(1);
    }
    for (wheel, name) in LIBRARIES {
        extract(&mut archives[wheel], name, &lib.join(name_of(name)))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    std::os::unix::fs::symlink("libgomp.so.1", lib.join("libgomp.so")).context("cannot link libgomp.so")?;
    // The bindings ask the linker for `torch`, which in the wheel would draw in the GPU libraries.
    fs::write(lib.join("libtorch.so"), "INPUT(-ltorch_cpu)\n").context("cannot write libtorch.so")?;
    // Last: its presence says that the folder is whole.
    fs::write(folder.join("build-version"), format!("{LIBTORCH}\n")).context("cannot write build-version")
}

fn bar_of_files() -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} files")
        .expect("invariant: the template is well-formed")
}

/// The path below `include/` of a header in the torch wheel; never one that climbs out of the folder.
fn header(name: &str) -> Option<&str> {
    let inside = name.strip_prefix("torch/include/")?;
    let plain = !inside.is_empty() && !inside.ends_with('/') && inside.split('/').all(|part| part != "..");
    plain.then_some(inside)
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn extract(archive: &mut ZipArchive<BufReader<File>>, name: &str, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let mut entry = archive.by_name(name).with_context(|| format!("the wheel holds no {name}"))?;
    let mut file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    io::copy(&mut entry, &mut file).with_context(|| format!("cannot unpack {name}"))?;
    Ok(())
}

/// What tells cargo where libtorch and the build output are; read through `include` in config.toml.
fn local_toml(target: &Path, libtorch: &Path) -> Result<String> {
    let (target, libtorch) = (toml_text(target)?, toml_text(libtorch)?);
    Ok(format!(
        "# Written by `cargo xtask setup`.\n[build]\ntarget-dir = \"{target}\"\n\n[env]\nLIBTORCH = \"{libtorch}\"\n\n\
         [target.x86_64-unknown-linux-gnu]\nrustflags = [\"-Clink-arg=-Wl,-rpath,{libtorch}/lib\"]\n"
    ))
}

/// A path for a basic TOML string. A comma would part it in the linker's argument.
fn toml_text(path: &Path) -> Result<&str> {
    match path.to_str() {
        Some(text) if !text.contains(['"', '\\', ',']) && !text.contains(char::is_control) => Ok(text),
        _ => bail!("the cache lies at {path:?}: quotes, commas and the like do not work in XDG_CACHE_HOME"),
    }
}

/// Free bytes of the file system that holds `folder`, or its nearest parent that exists.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let present = folder.ancestors().find(|path| path.exists())?;
    free_in(&process::output(Command::new("df").arg("-Pk").arg(present)).ok()?)
}

/// Reads the output of POSIX `df -Pk`: the fourth column of the second line, in KiB.
fn free_in(df: &str) -> Option<u64> {
    let kib: u64 = df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_land_below_include_and_nowhere_else() {
        assert_eq!(header("torch/include/ATen/ATen.h"), Some("ATen/ATen.h"));
        for name in
            ["torch/include/", "torch/include/ATen/", "torch/lib/libc10.so", "torch/include/../../evil.h"]
        {
            assert_eq!(header(name), None, "{name}");
        }
    }

    #[test]
    fn the_free_column_of_df_is_read() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264212084 21951548 73334340 24% /\n";
        assert_eq!(free_in(df), Some(73_334_340 * 1024));
        assert_eq!(free_in("Filesystem\n"), None);
        assert_eq!(free_in(""), None);
    }

    #[test]
    fn cargo_settings_name_both_folders_and_refuse_what_toml_or_the_linker_would_misread() {
        let text = local_toml(Path::new("/c/target"), Path::new("/c/lt")).expect("plain paths");
        assert!(
            text.contains("target-dir = \"/c/target\"\n") && text.contains("LIBTORCH = \"/c/lt\"\n"),
            "{text}"
        );
        assert!(text.contains("rustflags = [\"-Clink-arg=-Wl,-rpath,/c/lt/lib\"]\n"), "{text}");
        assert!(local_toml(Path::new("/c\"d/target"), Path::new("/c")).is_err());
        assert!(toml_text(Path::new("/a,b")).is_err());
    }

    #[test]
    fn a_libtorch_folder_lacking_a_library_or_of_another_version_is_not_installed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let root = folder.path();
        fs::create_dir(root.join("lib")).expect("writable");
        for (_, path) in LIBRARIES {
            fs::write(root.join("lib").join(name_of(path)), "").expect("writable");
        }
        assert!(!libtorch_installed(root), "no build-version");
        fs::write(root.join("build-version"), "2.12.0\n").expect("writable");
        assert!(!libtorch_installed(root), "an older version");
        fs::write(root.join("build-version"), "2.13.0\n").expect("writable");
        assert!(libtorch_installed(root));
        fs::remove_file(root.join("lib/libcupti.so.13")).expect("writable");
        assert!(!libtorch_installed(root), "a library is gone");
    }
}
