//! What the end-to-end tests share: the binary under test, a small model, and a place to write.

pub mod component;
pub mod puppet;

use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The root of the repository, of the checkout that runs: clones share build output, so not the one that compiled.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
        let root = Path::new(&package).ancestors().find(|place| place.join("Cargo.lock").is_file());
        root.expect("the package lies in the repository").to_path_buf()
    })
}

/// The directory that cargo builds into, found from where this test runs.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    exe.ancestors().nth(3).expect("a test runs in <target>/<profile>/deps").to_path_buf()
}

/// Where `cargo xtask plugins` put what ships, and the fixtures of tests: in `MOLT_TEST_PLUGINS`, or above the place
/// that this test runs from.
pub fn plugins() -> [PathBuf; 2] {
    let given = std::env::var_os("MOLT_TEST_PLUGINS").map(PathBuf::from);
    let exe = std::env::current_exe().expect("a running test has a path");
    let places: Vec<PathBuf> = given.into_iter().chain(exe.ancestors().skip(1).map(Into::into)).collect();
    ["plugins", "plugins-test"].map(|folder| {
        let found = places.iter().map(|place| place.join(folder)).find(|folder| folder.is_dir());
        found.expect("run `cargo xtask plugins` first")
    })
}

/// Cargo as called by hand. With the variables of this package, build scripts that look at them would run again, and
/// all that depends on them be compiled again.
fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
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

/// The `molt` binary, built once per test run so that it is never older than the sources.
pub fn molt() -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let binary = BUILT.get_or_init(|| {
        let status = cargo()
            .args(["build", "--quiet", "--package", "molt-cli"])
            .current_dir(root())
            .status()
            .expect("cargo runs");
        assert!(status.success(), "molt does not build");
        target_dir().join("debug/molt")
    });
    let mut command = Command::new(binary);
    command.current_dir(root());
    command
}

/// Runs `molt` with `args` and returns what it printed.
pub fn run(args: &[&str]) -> Output {
    molt().args(args).output().expect("molt starts")
}

/// Standard output and error of a finished command as one text.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Asserts that the command succeeded, showing what it printed if not.
pub fn assert_ok(output: &Output) {
    assert!(output.status.success(), "{}\n{}", output.status, text(output));
}

/// A randomly initialised model of the demo's family, made once per test run by `molt init`. It replaces the one
/// of the last run, whole at once.
pub fn tiny_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let model = target_dir().join("e2e-model");
        // Two test runs at a time take turns; the lock ends with the file's handle.
        let lock = File::create(model.with_extension("lock")).expect("a lock file in the target directory");
        lock.lock().expect("the lock");
        let new = model.with_extension("new");
        for left in [&new, &new.with_extension("new.part")] {
            remove(left);
        }
        assert_ok(&run(&["init", "examples/demo/model", path(&new), "--seed", "1"]));
        remove(&model);
        fs::rename(&new, &model).expect("the model moves to its place");
        model
    })
}

/// The same model with a context of 2048 tokens, in `dir`.
pub fn roomy_model(dir: &Path) -> PathBuf {
    let (source, model) = (dir.join("source"), dir.join("model"));
    fs::create_dir(&source).expect("a directory of its own");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text =
            fs::read_to_string(root().join("examples/demo/model").join(file)).expect("the demo's model");
        let roomy = text
            .replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 2048")
            .replace("\"model_max_length\": 64", "\"model_max_length\": 2048");
        fs::write(source.join(file), roomy).expect("a file");
    }
    assert_ok(&run(&["init", path(&source), path(&model), "--seed", "1"]));
    model
}

/// Removes the directory if it is there.
fn remove(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", dir.display());
    }
}

/// What was installed for comparisons by `cargo xtask bench train`, as `PYTHONPATH`: PyTorch with its launcher. None where it
/// was not, or not as it should be now.
pub fn peer() -> Option<PathBuf> {
    let wanted = fs::read_to_string(root().join("host/trainer/benches/train/requirements.txt")).ok()?;
    let version = wanted.lines().find_map(|line| line.strip_prefix("torch=="))?;
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    let peer = cache.join("molt").join(format!("peer-{version}"));
    let installed = fs::read_to_string(peer.join("requirements.txt")).ok()?;
    (installed == wanted).then_some(peer)
}

/// Says that a part of a test cannot run here, also where what a test prints is not shown.
pub fn skipped(part: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {part}: {why}");
}

/// A path as an argument.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// The JSON file at `path`.
pub fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The training steps in a `metrics.jsonl`, without the lines of evaluations.
pub fn metrics(run: &Path) -> Vec<Value> {
    let path = run.join("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a whole JSON line"));
    lines.filter(|line: &Value| line.get("train/loss").is_some()).collect()
}

/// The values of metrics of a run, step after step.
#[track_caller]
pub fn numbers(run: &Path, names: &[&str]) -> Vec<f64> {
    let of = |line: &Value, name: &str| line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"));
    metrics(run).iter().flat_map(|line| names.iter().map(|name| of(line, name)).collect::<Vec<_>>()).collect()
}

/// Up to `relative`. Of a loss whose terms of size 1 cancel, as in a first step, only rounding is left: below a
/// hundredth the difference counts, not its share.
#[track_caller]
pub fn agree(found: &[f64], expected: &[f64], relative: f64) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= relative * b.abs().max(1e-2), "{found:?} is not {expected:?}");
    }
}

/// Arguments of a short RL run of the tiny model into `run`, without evaluation; later flags win.
pub fn short_run(run: &Path) -> Vec<String> {
    [
        "train",
        "--model.path",
        path(tiny_model()),
        "--data.prompts",
        "examples/demo/train.jsonl",
        "--reward.name",
        "exact-match",
        "--rollout.batch_size",
        "4",
        "--rollout.samples_per_prompt",
        "4",
        "--rollout.max_new_tokens",
        "8",
        "--train.max_steps",
        "3",
        "--train.eval_at_start",
        "false",
        "--run.dir",
        path(run),
    ]
    .map(String::from)
    .to_vec()
}

/// Builds a plugin from one source file, as an author would outside this repository, and returns the component.
pub fn build_plugin(dir: &Path, name: &str, source: &str) -> PathBuf {
    let package = dir.join(name);
    fs::create_dir_all(package.join("src")).expect("a package directory");
    fs::write(package.join("src/lib.rs"), source).expect("the source file");
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [lib]\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\nmolt-plugin = {{ path = {:?} }}\n\n[workspace]\n",
        root().join("sdk/rust")
    );
    fs::write(package.join("Cargo.toml"), manifest).expect("the manifest");
    // The repository's lock file has every dependency of the SDK, so nothing is fetched.
    fs::copy(root().join("Cargo.lock"), package.join("Cargo.lock")).expect("the lock file");
    let target = target_dir().join("e2e-plugins");
    let status = cargo()
        .args(["build", "--quiet", "--offline", "--release", "--target", "wasm32-wasip2"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&package)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{name} does not build");
    target.join("wasm32-wasip2/release").join(format!("{}.wasm", name.replace('-', "_")))
}

/// A reward that the untrained model gets some of.
pub fn length_reward(dir: &Path) -> PathBuf {
    let source = "use molt_plugin::reward::{Reward, Sample, Verdict};
        pub struct Length;
        impl Reward for Length {
            fn score(sample: Sample) -> Verdict {
                Verdict::reward(sample.completion.len() as f64 / 10.0)
            }
        }
        molt_plugin::export_reward!(Length);";
    build_plugin(dir, "length", source)
}
