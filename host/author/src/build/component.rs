//! From the core module that a compiler made to a component, and the bindings before it.

use crate::error::{AuthorError, OrAuthor};
use crate::project::Project;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_bindgen_core::{Files, WorldGenerator};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, WorldId};

/// The world of the project's kind, in the project's own copy of the contract.
pub(super) struct World {
    pub(super) resolve: Resolve,
    pub(super) id: WorldId,
}

impl World {
    pub(super) fn of(project: &Project) -> Result<Self, AuthorError> {
        let wit = project.wit();
        let refused = || format!("the contract in {} cannot be read", wit.display());
        let help = "`molt plugin new` writes it there; take it from a new project";
        let mut resolve = Resolve::default();
        let (package, _) = caused(resolve.push_path(&wit)).or_user(refused(), help)?;
        let id =
            caused(resolve.select_world(&[package], Some(project.kind.world()))).or_user(refused(), help)?;
        Ok(Self { resolve, id })
    }

    /// The full and the short name of each interface that the world imports or exports.
    pub(super) fn interfaces(&self) -> Vec<(String, String)> {
        let Some(world) = self.resolve.worlds.get(self.id) else { return Vec::new() };
        let names =
            world.imports.keys().chain(world.exports.keys()).map(|key| self.resolve.name_world_key(key));
        names.filter_map(|full| Some((full.clone(), short(&full)?.to_owned()))).collect()
    }

    /// Writes what the generator makes into `dir`, each file changed by `edit`.
    pub(super) fn generate(
        &self,
        mut generator: Box<dyn WorldGenerator>,
        dir: &Path,
        edit: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Result<(), AuthorError> {
        let mut files = Files::default();
        // The generator changes what it is given.
        caused(generator.generate(&mut self.resolve.clone(), self.id, &mut files))
            .or_failed("the bindings cannot be generated", "take molt/ from a new project")?;
        for (name, contents) in files.iter() {
            let path = dir.join(name);
            let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
            parent.and_then(|()| fs::write(&path, edit(contents))).or_failed(
                format!("cannot write {}", path.display()),
                "free space there, or make the directory writable",
            )?;
        }
        Ok(())
    }

    /// Says in the core module which world it is of. The linker does so for C.
    pub(super) fn embed(&self, core: &mut Vec<u8>) -> Result<(), AuthorError> {
        caused(embed_component_metadata(core, &self.resolve, self.id, StringEncoding::UTF8))
            .or_failed("the compiler's module cannot be made a component", "take molt/ from a new project")
    }
}

/// A directory for the core module, gone with the value.
pub(super) fn scratch() -> Result<tempfile::TempDir, AuthorError> {
    tempfile::tempdir().or_failed("there is no place for the compiler's module", "free space in TMPDIR")
}

/// Runs the compiler. Its messages go to the terminal as they come.
pub(super) fn compile(project: &Project, compiler: &mut Command, help: &str) -> Result<(), AuthorError> {
    let program = compiler.get_program().to_string_lossy().into_owned();
    let status =
        compiler.stdin(Stdio::null()).status().or_user(format!("{program} cannot be started"), "")?;
    if status.success() {
        return Ok(());
    }
    Err(AuthorError::failed(format!("{} does not compile", project.name), help))
}

/// Makes the component. What the module imports of WASI's first version comes from an adapter, and becomes imports
/// of the second. `help` says how the source exports what it must.
pub(super) fn component(core: &[u8], help: &str) -> Result<Vec<u8>, AuthorError> {
    let encode = || {
        let mut encoder = ComponentEncoder::default();
        encoder.validate(true).module(core)?;
        encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?;
        encoder.encode()
    };
    caused(encode()).or_failed("the compiler's module cannot be made a component", help)
}

/// `reward` of `molt:plugin/reward@0.2.0`.
fn short(full: &str) -> Option<&str> {
    full.split_once('/')?.1.split('@').next()
}

/// The libraries' errors as ones that have sources.
fn caused<T, E: Into<Box<dyn std::error::Error + Send + Sync>>>(result: Result<T, E>) -> Result<T, Cause> {
    result.map_err(|error| Cause(error.into()))
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Cause(Box<dyn std::error::Error + Send + Sync>);
