//! Builds the plugins that ship and are not written in Rust, with the tools that their authors use.

use crate::cache::Cache;
use crate::{plugins, process};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// Their projects, in the checkout.
const PROJECTS: [&str; 1] = ["plugins/interpreters/python"];

/// What else a build depends on, in the checkout.
const INPUTS: [&str; 2] = ["wit/0.2.0", "host/author/src/build"];

/// Builds what changed since it was built last, into `plugins`.
pub(crate) fn build(cache: &Cache) -> Result<()> {
    let root = process::workspace_root();
    let folder = cache.target().join("plugins");
    for project in PROJECTS {
        let name = project.rsplit('/').next().unwrap_or(project);
        let digest = digest(&root, project)?;
        let noted = folder.join(format!(".{name}.built"));
        if folder.join(format!("{name}.wasm")).is_file()
            && fs::read_to_string(&noted).is_ok_and(|noted| noted == digest)
        {
            continue;
        }
        eprintln!(
            "{name}: the author's tools and {project} are built, which takes some minutes the first time"
        );
        let build = ["run", "--package", "molt-author", "--bin", "molt-plugin", "--", "build", project];
        process::run(&mut process::cargo(build))?;
        let built = root.join(project).join(format!("{name}.wasm"));
        plugins::install(&built, &folder, name)?;
        fs::remove_file(&built).with_context(|| format!("cannot remove {}", built.display()))?;
        fs::write(&noted, digest).with_context(|| format!("cannot write {}", noted.display()))?;
    }
    Ok(())
}

/// Of every file that `project` is built from. Where the checkout lies changes nothing, for clones share the cache.
fn digest(root: &Path, project: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for input in [project].into_iter().chain(INPUTS) {
        for file in files(&root.join(input))? {
            hash.update(file.strip_prefix(root).unwrap_or(&file).to_string_lossy().as_bytes());
            hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Regular files below `root`, sorted, without what a build leaves behind.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", root.display()))?.path();
        let left_behind = path.ends_with("molt") || path.ends_with("__pycache__");
        if path.is_dir() && !left_behind {
            found.extend(files(&path)?);
        } else if path.is_file() && path.extension().is_none_or(|extension| extension != "wasm") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_what_a_build_reads() {
        let roots = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
        let write_in = |root: &Path, path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("has one")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        for root in &roots {
            for input in INPUTS {
                write_in(root.path(), &format!("{input}/file"), "1");
            }
            write_in(root.path(), "p/code.py", "1");
        }
        let [root, clone] = roots;
        let write = |path: &str, text: &str| write_in(root.path(), path, text);
        let digest = || digest(root.path(), "p").expect("readable");
        let before = digest();
        assert_eq!(super::digest(clone.path(), "p").expect("readable"), before);
        write("p/p.wasm", "built");
        write("p/molt/bindings/types.py", "generated");
        assert_eq!(digest(), before);
        write("p/code.py", "2");
        let changed = digest();
        assert_ne!(changed, before);
        write(&format!("{}/file", INPUTS[0]), "2");
        assert_ne!(digest(), changed);
    }
}
