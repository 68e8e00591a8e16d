//! What a run may grant a plugin beyond itself: linked only where the plugin imports it and the run grants it.

mod client;
mod code;
mod directories;
mod files;
mod http;
mod judge;
mod model;
mod open;
mod real;
mod roots;
mod scratch;
mod stream;

use molt_core::settings::Access;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
use wasmtime::component::Linker;
use wasmtime_wasi::WasiCtxBuilder;

#[expect(unreachable_pub, reason = "generated code re-exports it")]
pub use code::CodeSession;
pub use judge::{JudgeEndpoint, JudgeError};
pub(crate) use open::NoMoreFiles;

use crate::error::LoadError;
use crate::info::Info;
use crate::interpreter::Interpreter;
use crate::library::Library;
use crate::plugin::{Call, Data};
use crate::sandbox::Sandbox;
use code::CodeState;
use directories::{Directories, FileState};
use http::{Http, HttpState};
use model::{Model, ModelState};
use real::Entropy;

/// The grants of one plugin, made ready when it is loaded.
#[derive(Default)]
pub(crate) struct Granted {
    directories: Arc<Directories>,
    http: Option<Arc<Http>>,
    model: Option<Arc<Model>>,
    interpreter: Option<Interpreter>,
    real_clock: bool,
    entropy: Option<Entropy>,
}

/// Nothing of it may be printed: it holds connections and models.
impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted").finish_non_exhaustive()
    }
}

impl Granted {
    /// Makes ready what `access` grants the plugin called `name`.
    ///
    /// # Errors
    /// A directory, an origin or an interpreter that is granted cannot be used.
    pub(crate) fn new(
        sandbox: &Sandbox,
        library: &Library,
        name: &str,
        access: &Access,
    ) -> Result<Self, LoadError> {
        let grants = &access.grants;
        let refuse =
            |grant: &'static str, why: String| LoadError::Grant { name: name.to_owned(), grant, why };
        let mut directories = Directories::default();
        for path in &grants.read {
            let why = |why| refuse("read", format!("{}: {why}", path.display()));
            directories.read(path).map_err(why)?;
        }
        if let Some(mib) = grants.scratch_mib {
            let made = directories.scratch(mib, grants.scratch_files);
            made.map_err(|error| refuse("scratch_mib", error.to_string()))?;
        }
        if grants.real_clock {
            directories.show_times();
        }
        let http = (!grants.http.is_empty()).then(|| Http::new(name, grants));
        let http = http.transpose().map_err(|why| refuse("http", why))?.map(Arc::new);
        let model = grants
            .model
            .map(|which| Arc::new(Model { which, calls: grants.model_calls, models: sandbox.models() }));
        let interpreter =
            grants.code.as_deref().map(|code| sandbox.interpreter(library, code, access.code_limits));
        let entropy = grants.real_random.then(Entropy::new);
        Ok(Self {
            directories: Arc::new(directories),
            http,
            model,
            interpreter: interpreter.transpose()?,
            real_clock: grants.real_clock,
            entropy: entropy.transpose().map_err(|e| refuse("real_random", e.to_string()))?,
        })
    }

    /// Whether the run grants what `import`, which no plugin gets by default, asks for.
    pub(crate) fn allows(&self, import: &str) -> bool {
        let Some((interface, version)) = import.split_once('@') else { return false };
        match interface {
            "wasi:http/types" | "wasi:http/outgoing-handler" => {
                self.http.is_some() && version.starts_with("0.2.")
            }
            "molt:plugin/model" => self.model.is_some(),
            "molt:plugin/code" => self.interpreter.is_some(),
            _ => false,
        }
    }

    /// Whether the plugin has directories of its own, so that files are not refused.
    pub(crate) fn has_files(&self) -> bool {
        !self.directories.is_empty()
    }

    /// Whether the plugin may send requests, so that each of its handles may stand for much.
    pub(crate) fn has_http(&self) -> bool {
        self.http.is_some()
    }

    /// The interpreter that runs its code.
    pub(crate) fn interpreter(&self) -> Option<&Info> {
        self.interpreter.as_ref().map(Interpreter::info)
    }

    /// Links what the run grants, in place of the refusals.
    pub(crate) fn link(&self, linker: &mut Linker<Data>) -> wasmtime::Result<()> {
        // The monotonic clock is linked already, to virtual time.
        linker.allow_shadowing(true);
        if self.has_files() {
            files::link(linker)?;
        }
        if self.real_clock {
            real::link(linker)?;
        }
        if self.http.is_some() {
            http::link(linker)?;
        }
        if self.model.is_some() {
            model::link(linker)?;
        }
        if self.interpreter.is_some() {
            code::link(linker)?;
        }
        Ok(())
    }

    /// The state of a new instance.
    pub(crate) fn state(&self, call: Call, wasi: &mut WasiCtxBuilder) -> State {
        if self.real_clock {
            real::clock(wasi);
        }
        if let Some(entropy) = &self.entropy {
            entropy.give(wasi);
        }
        State {
            files: self.directories.state(),
            http: HttpState::new(self.http.clone()),
            model: ModelState::new(self.model.clone(), call),
            code: CodeState::new(self.interpreter.clone(), call),
        }
    }
}

/// What one instance holds of its grants.
pub(crate) struct State {
    files: FileState,
    http: HttpState,
    model: ModelState,
    code: CodeState,
}

impl State {
    /// Whether the call in progress waits until others end a session of its interpreter.
    pub(crate) fn waits_for_a_session(&self) -> bool {
        self.code.waits()
    }
}

/// What a derived seed is for. Stream 0 is the instance's own randomness.
#[derive(Clone, Copy)]
enum Purpose {
    Question = 1,
    Session = 2,
}

/// The seed of the `n`th question or session of an instance with `seed`.
fn nth_seed(seed: u64, purpose: Purpose, n: u64) -> u64 {
    let mut stream = ChaCha12Rng::seed_from_u64(seed);
    stream.set_stream((purpose as u64) << 62 | n);
    stream.next_u64()
}
