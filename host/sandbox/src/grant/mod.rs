//! What a run may grant a plugin beyond itself: linked only where the plugin imports it and the run grants it.

use wasmtime::Engine;
use wasmtime::component::{Component, Linker};
use wasmtime_wasi::WasiCtxBuilder;

use crate::error::LoadError;
use crate::library::Library;
use crate::plugin::{Call, Data};
use crate::sandbox::Sandbox;
use molt_core::settings::Access;

/// The session of an interpreter that an instance holds.
#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub struct CodeSession;

/// The grants of one plugin, made ready when it is loaded.
#[derive(Debug, Default)]
pub(crate) struct Granted {}

impl Granted {
    /// Makes ready what `access` grants the plugin called `name`.
    ///
    /// # Errors
    /// A directory, an origin or an interpreter that is granted cannot be used.
    pub(crate) fn new(
        _sandbox: &Sandbox,
        _library: &Library,
        _name: &str,
        _access: &Access,
    ) -> Result<Self, LoadError> {
        Ok(Self {})
    }

    /// Whether the run grants what `import`, which no plugin gets by default, asks for.
    pub(crate) fn allows(&self, _import: &str) -> bool {
        false
    }

    /// Links what `component` imports and the run grants. What is linked here is not linked to refusals.
    pub(crate) fn link(
        &self,
        _linker: &mut Linker<Data>,
        _engine: &Engine,
        _component: &Component,
    ) -> wasmtime::Result<()> {
        Ok(())
    }

    /// The state of a new instance.
    pub(crate) fn state(&self, _call: Call, _wasi: &mut WasiCtxBuilder) -> State {
        State {}
    }
}

/// What one instance holds of its grants.
#[derive(Debug, Default)]
pub(crate) struct State {}
