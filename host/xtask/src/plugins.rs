//! Builds the workspace's WebAssembly components and puts them where `molt` looks for plugins.
//!
//! A package is one if its manifest says `[package.metadata.molt] plugin = true`; `test-fixture = true`
//! keeps it out of what ships.

use crate::cache::Cache;
use crate::process;
use crate::setup::WASM_TARGET;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plugin {
    /// The package, and the name that `molt` finds it by.
    name: String,
    /// What cargo calls the file, without `.wasm`.
    library: String,
    test_fixture: bool,
}

/// One cargo call for all of them; those that ship land in `plugins`, fixtures of tests in `plugins-test`.
pub(crate) fn build(cache: &Cache) -> Result<()> {
    let plugins = find(&metadata()?)?;
    if plugins.is_empty() {
        bail!("no workspace package has `plugin = true` in [package.metadata.molt]");
    }
    let mut command = process::cargo(["build", "--profile", "plugin", "--target", WASM_TARGET]);
    for plugin in &plugins {
        command.args(["--package", &plugin.name]);
    }
    process::run(&mut command)?;
    let built = cache.target().join(WASM_TARGET).join("plugin");
    for plugin in &plugins {
        let folder = cache.target().join(if plugin.test_fixture { "plugins-test" } else { "plugins" });
        install(&built.join(format!("{}.wasm", plugin.library)), &folder, &plugin.name)?;
    }
    Ok(())
}

/// The names of the components that ship.
pub(crate) fn shipped() -> Result<Vec<String>> {
    Ok(find(&metadata()?)?.into_iter().filter(|p| !p.test_fixture).map(|p| p.name).collect())
}

/// A rename, so that a run that starts meanwhile sees the old file or the new one.
pub(crate) fn install(from: &Path, folder: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let part = folder.join(format!(".{name}.{}", std::process::id()));
    let to = folder.join(format!("{name}.wasm"));
    fs::copy(from, &part).with_context(|| format!("cannot copy {} to {}", from.display(), part.display()))?;
    fs::rename(&part, &to).with_context(|| format!("cannot write {}", to.display()))
}

fn metadata() -> Result<String> {
    process::output(&mut process::cargo(["metadata", "--no-deps", "--format-version", "1", "--quiet"]))
}

/// The plugins among the packages of `cargo metadata`, sorted by name.
fn find(metadata: &str) -> Result<Vec<Plugin>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let mut plugins = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let molt = &package["metadata"]["molt"];
        let name = package["name"].as_str().context("cargo metadata lists a package without a name")?;
        if molt["plugin"] != true && molt["test-fixture"] != true {
            continue;
        }
        let library = package["targets"].as_array().into_iter().flatten().find(|target| {
            target["crate_types"].as_array().is_some_and(|types| types.iter().any(|t| t == "cdylib"))
        });
        let Some(library) = library.and_then(|target| target["name"].as_str()) else {
            bail!("{name} says it is a plugin: its [lib] needs crate-type = [\"cdylib\"]");
        };
        plugins.push(Plugin {
            name: name.into(),
            library: library.replace('-', "_"),
            test_fixture: molt["test-fixture"] == true,
        });
    }
    plugins.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(plugins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(list: &str) -> Result<Vec<Plugin>> {
        find(&format!(r#"{{"packages":[{list}]}}"#))
    }

    #[test]
    fn plugins_are_what_their_manifest_says() {
        let found = packages(
            r#"{"name":"single-turn","targets":[{"name":"single_turn","crate_types":["cdylib","rlib"]}],
                "metadata":{"molt":{"plugin":true}}},
               {"name":"loops","targets":[{"name":"loops","crate_types":["cdylib"]}],
                "metadata":{"molt":{"plugin":true,"test-fixture":true}}},
               {"name":"molt-core","targets":[{"name":"molt_core","crate_types":["lib"]}],"metadata":null}"#,
        );
        let plugin = |name: &str, library: &str, test_fixture| Plugin {
            name: name.into(),
            library: library.into(),
            test_fixture,
        };
        let expected = [plugin("loops", "loops", true), plugin("single-turn", "single_turn", false)];
        assert_eq!(found.expect("well-formed"), expected);
    }

    #[test]
    fn a_plugin_without_a_cdylib_is_refused_by_name() {
        let error = packages(
            r#"{"name":"grpo","targets":[{"name":"grpo","crate_types":["lib"]}],"metadata":{"molt":{"plugin":true}}}"#,
        )
        .expect_err("no cdylib");
        assert!(error.to_string().contains("grpo") && error.to_string().contains("cdylib"), "{error}");
    }

    #[test]
    fn installing_replaces_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (from, to) = (folder.path().join("a_b.wasm"), folder.path().join("plugins"));
        for contents in ["one", "two"] {
            fs::write(&from, contents).expect("writable");
            install(&from, &to, "a-b").expect("installed");
            assert_eq!(fs::read_to_string(to.join("a-b.wasm")).expect("readable"), contents);
        }
        assert_eq!(fs::read_dir(&to).expect("readable").count(), 1);
    }
}
