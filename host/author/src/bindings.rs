//! The Rust SDK's bindings, written out: what `wit_bindgen::generate!` would make of the SDK's `bindings.rs`.
//! Without the macro a project compiles the SDK and itself, and not forty packages that parse and generate.

use crate::error::{AuthorError, OrAuthor};
use std::fs;
use std::path::Path;
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, WithOption};
use wit_parser::{PackageId, Resolve};

/// A module of the bindings and its world; an interface if the component imports it.
const MODULES: [(&str, Of); 9] = [
    ("types", Of::Interface("types")),
    ("environment", Of::World("environment-plugin")),
    ("reward", Of::World("reward-plugin")),
    ("group_reward", Of::World("group-reward-plugin")),
    ("estimator", Of::World("estimator-plugin")),
    ("loss", Of::World("loss-plugin")),
    ("interpreter", Of::World("interpreter-plugin")),
    ("model", Of::Interface("model")),
    ("code", Of::Interface("code")),
];

enum Of {
    World(&'static str),
    Interface(&'static str),
}

/// The module that holds the records which all kinds share.
const TYPES: &str = "molt:plugin/types@0.2.0";

/// Replaces the SDK's macros in `project`, where SDK and contract are already, by what they stand for.
///
/// # Errors
/// The project cannot be read or written.
pub(crate) fn write_out(project: &Path) -> Result<(), AuthorError> {
    let wit = project.join("molt/wit").join(crate::embedded::CONTRACT);
    let refused = || format!("the bindings of {} cannot be written", project.display());
    let mut text = "//! The contract in Rust, made by `molt plugin new` from molt/wit.\n".to_owned();
    for (name, of) in &MODULES {
        let module = generate(&wit, name, of).map_err(|error| AuthorError {
            because: vec![error],
            ..AuthorError::failed(refused(), "build Molt anew: its contract is damaged")
        })?;
        text += &format!("\npub mod {name} {{\n{module}}}\n");
    }
    let sdk = project.join("molt/sdk/rust");
    let manifest = sdk.join("Cargo.toml");
    let write = || {
        fs::write(sdk.join("src/bindings.rs"), text)?;
        fs::write(&manifest, without_macros(&fs::read_to_string(&manifest)?))
    };
    write().or_failed(refused(), "free space there")
}

/// The manifest of an SDK that needs no macro.
fn without_macros(manifest: &str) -> String {
    let line = |line: &str| {
        let version = line.strip_prefix("wit-bindgen = ");
        version.map_or_else(|| line.to_owned(), |version| {
            format!("wit-bindgen = {{ version = {version}, default-features = false, features = [\"realloc\", \"std\"] }}")
        })
    };
    manifest.lines().map(|text| line(text) + "\n").collect()
}

fn generate(wit: &Path, name: &str, of: &Of) -> Result<String, String> {
    let mut resolve = Resolve::default();
    let told = |error: &dyn std::fmt::Display| format!("{error:#}");
    let (contract, _) = resolve.push_path(wit).map_err(|error| told(&error))?;
    let (package, world, uses) = match of {
        Of::World(world) => (contract, *world, String::new()),
        Of::Interface(interface) => {
            (import(&mut resolve, interface)?, *interface, format!("pub use molt::plugin::{interface}::*;\n"))
        }
    };
    let world = resolve.select_world(&[package], Some(world)).map_err(|error| told(&error))?;
    let imports = resolve.worlds.get(world).map(|world| world.imports.keys().collect::<Vec<_>>());
    let shared = name != "types"
        && imports.is_some_and(|keys| keys.iter().any(|key| resolve.name_world_key(key) == TYPES));
    let types = "crate::bindings::types::molt::plugin::types";
    let options = Opts {
        generate_all: true,
        generate_unused_types: name == "types",
        additional_derive_attributes: vec!["PartialEq".into(), "Clone".into()],
        with: if shared { vec![(TYPES.into(), WithOption::Path(types.into()))] } else { Vec::new() },
        pub_export_macro: matches!(of, Of::World(_)),
        default_bindings_module: Some(format!("molt_plugin::internal::{name}")),
        ..Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).map_err(|error| told(&error))?;
    let source: String = files.iter().map(|(_, source)| String::from_utf8_lossy(source)).collect();
    Ok(source + &uses)
}

/// A package with a world that imports one interface of the contract and has its name: the component holds a
/// section for each world, by name.
fn import(resolve: &mut Resolve, interface: &str) -> Result<PackageId, String> {
    let version = crate::embedded::CONTRACT;
    let text =
        format!("package molt:sdk;\nworld {interface} {{ import molt:plugin/{interface}@{version}; }}\n");
    resolve.push_str("sdk.wit", &text).map_err(|error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_are_those_of_the_sdk() {
        let sdk = include_str!("../../../sdk/rust/src/bindings.rs");
        let modules = sdk.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(" {"));
        assert_eq!(modules.collect::<Vec<_>>(), MODULES.map(|(name, _)| name));
        assert!(sdk.contains(TYPES) && !sdk.contains("path: \"../../wit/0.1"));
    }

    #[test]
    fn the_manifest_keeps_its_version() {
        let manifest = "[dependencies]\nwit-bindgen = \"0.61\"\n";
        let expected = "[dependencies]\nwit-bindgen = { version = \"0.61\", default-features = false, features = \
                        [\"realloc\", \"std\"] }\n";
        assert_eq!(without_macros(manifest), expected);
        let sdk = include_str!("../../../sdk/rust/Cargo.toml");
        assert_ne!(without_macros(sdk), sdk);
    }
}
