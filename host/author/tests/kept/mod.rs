//! Components of the templates, built once and kept for the next run of the tests that use them, until their source
//! or the build changes.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The first is what the others are compared with.
pub(crate) const LANGUAGES: [&str; 6] = ["rust", "python", "js", "ts", "c", "go"];

/// Where builds are kept.
pub(crate) fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The path of the template's component, which the sources in `build` make. `molt_plugin` runs the author's tools
/// with arguments in a directory.
pub(crate) fn component(
    kind: &str,
    language: &str,
    build: &Path,
    molt_plugin: impl Fn(&[&str], &Path),
) -> String {
    let project = tempfile::tempdir().unwrap();
    molt_plugin(&["new", "example", "--kind", kind, "--lang", language], project.path());
    let source = project.path().join("example");
    let mut hash = Sha256::new();
    // The crates that make bindings and components, each with its version.
    let makes = |package: &&str| {
        ["wit-", "wasm", "wasi"].iter().any(|name| package.contains(&format!("\nname = \"{name}")))
    };
    for package in include_str!("../../../../Cargo.lock").split("[[package]]").filter(makes) {
        hash.update(package);
    }
    // Of the build, what it does for another language changes nothing here.
    let module = |language| if language == "ts" { "js" } else { language };
    let others: Vec<&str> =
        LANGUAGES.into_iter().map(module).filter(|other| *other != module(language)).collect();
    for root in [source.as_path(), build] {
        for file in files(root) {
            let first =
                file.strip_prefix(root).unwrap().iter().next().map(Path::new).and_then(Path::file_stem);
            if root != source && others.iter().any(|other| first.is_some_and(|first| first == *other)) {
                continue;
            }
            hash.update(file.strip_prefix(root).unwrap().to_string_lossy().as_bytes());
            hash.update(fs::read(&file).unwrap());
        }
    }
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = place("languages");
    let component = folder.join(format!("{language}-{kind}-{digest}.wasm"));
    if !component.is_file() {
        molt_plugin(&["build", "example"], project.path());
        fs::create_dir_all(&folder).unwrap();
        let part = folder.join(format!(".{language}-{kind}-{}", std::process::id()));
        fs::copy(source.join("example.wasm"), &part).unwrap();
        for old in files(&folder) {
            if old.file_name().unwrap().to_string_lossy().starts_with(&format!("{language}-{kind}-")) {
                fs::remove_file(old).unwrap();
            }
        }
        fs::rename(part, &component).unwrap();
    }
    component.to_str().unwrap().to_owned()
}

/// All files below `root`, sorted.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}
