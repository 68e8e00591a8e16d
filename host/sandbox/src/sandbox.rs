//! What runs plugins: how many of them at a time, and how one is loaded.

use molt_core::settings::{Access, GrantedModel};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Semaphore;
use wasmtime::component::{Component, InstancePre};

use crate::contract::{self, Contract};
use crate::engine::{self, Engines};
use crate::environment::Environment;
use crate::error::LoadError;
use crate::estimator::Estimator;
use crate::grant::Granted;
use crate::info::{Info, Kind};
use crate::interpreter::Interpreter;
use crate::library::Library;
use crate::loss::Loss;
use crate::model::ChatModel;
use crate::observe::{Cost, Observer};
use crate::plugin::{Data, Plugin};
use crate::reward::Reward;
use crate::{quote, refuse, strip, wasi};

/// Episodes that may be open at a time, over all environments. More wait.
const EPISODES: u32 = 6144;

/// Rewards that may be computed at a time. Apart from the episodes, so that neither waits for the other.
const REWARDS: u32 = 256;

/// Estimates that may be computed at a time. Apart from the rewards, whose queue the trainer must not wait in.
const ESTIMATES: u32 = 16;

/// Sessions of interpreters that may be open at a time. Apart from the episodes, which hold them.
const SESSIONS: u32 = 1024;

/// Room for instances that are being taken down: their slot is free a moment earlier.
const SPARE: u32 = 128;

/// Runs plugins. Clones share everything.
#[derive(Clone)]
pub struct Sandbox {
    engines: Arc<Engines>,
    episodes: Arc<Semaphore>,
    rewards: Arc<Semaphore>,
    estimates: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    models: Arc<Models>,
    observer: Option<Observer>,
    /// The digest of the one plugin that keeps its debug information.
    source_lines: Option<Arc<str>>,
}

/// The models that plugins may ask, as far as the run has them.
#[derive(Default)]
pub(crate) struct Models(RwLock<[Option<Arc<dyn ChatModel>>; 2]>);

impl Models {
    pub(crate) fn get(&self, which: GrantedModel) -> Option<Arc<dyn ChatModel>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)[which as usize].clone()
    }
}

impl Sandbox {
    /// Starts a runtime. Compiled code is kept in `cache_dir`, which is made private to the user, and is
    /// found again by what it was compiled from; without one, every process compiles anew.
    ///
    /// # Errors
    /// The cache directory cannot be made or the runtime cannot start.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, LoadError> {
        let others = EPISODES + REWARDS + SESSIONS + SPARE;
        let engines = Arc::new(Engines::new(cache_dir, ESTIMATES + SPARE, others)?);
        let slots = |count: u32| Arc::new(Semaphore::new(count as usize));
        Ok(Self {
            engines,
            episodes: slots(EPISODES),
            rewards: slots(REWARDS),
            estimates: slots(ESTIMATES),
            sessions: slots(SESSIONS),
            models: Arc::default(),
            observer: None,
            source_lines: None,
        })
    }

    /// Has `told` hear of every call of the plugins that are loaded from now on.
    #[must_use]
    pub fn observe(mut self, told: impl Fn(&Cost) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer(Arc::new(told)));
        self
    }

    /// Has the traces of the plugin with this digest tell source lines. For its author: the host looks them up in
    /// what the plugin says of itself, which no limit bounds.
    #[must_use]
    pub fn with_source_lines_of(mut self, digest: &str) -> Self {
        self.source_lines = Some(digest.into());
        self
    }

    /// Answers the questions of plugins that were granted `which`, loaded or yet to be loaded, with `model`.
    /// Until then they are told that it is not available.
    pub fn provide(&self, which: GrantedModel, model: Arc<dyn ChatModel>) {
        self.models.0.write().unwrap_or_else(PoisonError::into_inner)[which as usize] = Some(model);
    }

    /// The models of the run, to be asked when a plugin asks.
    pub(crate) fn models(&self) -> Arc<Models> {
        Arc::clone(&self.models)
    }

    /// Loads the reward plugin called `name`.
    ///
    /// # Errors
    /// It is not found, not a reward, built against another contract, or imports what is not granted.
    pub fn reward(
        &self,
        library: &Library,
        name: &str,
        access: impl Into<Access>,
    ) -> Result<Reward, LoadError> {
        let (plugin, component) = self.load(library, name, access.into(), Kind::Reward, &self.rewards)?;
        Reward::new(plugin, component)
    }

    /// Loads the environment plugin called `name`.
    ///
    /// # Errors
    /// It is not found, not an environment, built against another contract, or imports what is not granted.
    pub fn environment(
        &self,
        library: &Library,
        name: &str,
        access: impl Into<Access>,
    ) -> Result<Environment, LoadError> {
        let (plugin, component) =
            self.load(library, name, access.into(), Kind::Environment, &self.episodes)?;
        Environment::new(plugin, component)
    }

    /// Loads the estimator plugin called `name`.
    ///
    /// # Errors
    /// It is not found, not an estimator, built against another contract, or imports what is not granted.
    pub fn estimator(
        &self,
        library: &Library,
        name: &str,
        access: impl Into<Access>,
    ) -> Result<Estimator, LoadError> {
        let (plugin, component) =
            self.load(library, name, access.into(), Kind::Estimator, &self.estimates)?;
        Estimator::new(plugin, component)
    }

    /// Loads the loss plugin called `name`.
    ///
    /// # Errors
    /// It is not found, not a loss, built against another contract, or imports what is not granted.
    pub fn loss(&self, library: &Library, name: &str, access: impl Into<Access>) -> Result<Loss, LoadError> {
        let (plugin, component) = self.load(library, name, access.into(), Kind::Loss, &self.estimates)?;
        Loss::new(plugin, component)
    }

    /// Loads the interpreter plugin called `name`.
    ///
    /// # Errors
    /// It is not found, not an interpreter, built against another contract, or imports what is not granted.
    pub fn interpreter(
        &self,
        library: &Library,
        name: &str,
        access: impl Into<Access>,
    ) -> Result<Interpreter, LoadError> {
        let (plugin, component) =
            self.load(library, name, access.into(), Kind::Interpreter, &self.sessions)?;
        Interpreter::new(plugin, component)
    }

    /// Finds, checks, compiles and links a plugin, whose instances take `slots`.
    fn load(
        &self,
        library: &Library,
        name: &str,
        access: Access,
        wanted: Kind,
        slots: &Arc<Semaphore>,
    ) -> Result<(Plugin, InstancePre<Data>), LoadError> {
        let (info, bytes) = library.read(name).map_err(|error| library.of_kind(error, wanted))?;
        let contract = check(&info, wanted)?;
        let granted = Granted::new(self, library, &info.name, &access)?;
        check_imports(&info, &granted)?;
        let link = |error: wasmtime::Error| LoadError::Link {
            name: info.name.clone(),
            reason: quote::beginning(&format!("{error:#}")),
        };
        let limits = access.limits;
        let runtime = self.engines.of(&limits, wanted)?;
        let bytes = match &self.source_lines {
            Some(digest) if **digest == *info.digest => bytes,
            _ => strip::debug_information(bytes).map_err(|error| link(error.into()))?,
        };
        let component = Component::from_binary(&runtime.engine, &bytes).map_err(link)?;
        let places = engine::places(&component);
        let mut linker = runtime.linker;
        refuse::link(&mut linker, &runtime.engine, &component, granted.has_files()).map_err(link)?;
        granted.link(&mut linker).map_err(link)?;
        let component = linker.instantiate_pre(&component).map_err(link)?;
        tracing::debug!(plugin = info.name, kind = %info.kind, digest = info.digest, "loaded");
        let own = Arc::new(Semaphore::new(limits.instances.clamp(1, Semaphore::MAX_PERMITS)));
        let plugin = Plugin {
            info: Arc::new(info),
            contract,
            limits,
            granted: Arc::new(granted),
            engine: runtime.engine,
            slots: [own, slots.clone()],
            places,
            observer: self.observer.clone(),
        };
        Ok((plugin, component))
    }
}

/// Whether a plugin is of a contract that this host runs, and of the wanted kind.
fn check(info: &Info, wanted: Kind) -> Result<Contract, LoadError> {
    let imports = info.imports.iter().filter_map(|import| import.strip_prefix("molt:plugin/"));
    let imported = imports.filter_map(|import| import.split_once('@')).map(|(_, version)| version);
    let mut versions = std::iter::once(info.contract.as_str()).chain(imported);
    if let Some(found) = versions.find(|version| Contract::of(version).is_none()) {
        return Err(LoadError::Contract {
            name: info.name.clone(),
            found: found.to_owned(),
            supported: contract::SUPPORTED,
            remedy: contract::remedy(found),
        });
    }
    if info.kind != wanted {
        return Err(LoadError::WrongKind { name: info.name.clone(), found: info.kind, wanted });
    }
    Ok(Contract::of(&info.contract).unwrap_or(Contract::V0_2))
}

/// Whether a plugin asks for nothing that is not granted.
fn check_imports(info: &Info, granted: &Granted) -> Result<(), LoadError> {
    // An interpreter may import the interface that it exports, to name its own type.
    let own = |import: &str| info.kind == Kind::Interpreter && import.starts_with(refuse::CODE);
    let allowed = |import: &str| wasi::is_harmless(import) || own(import) || granted.allows(import);
    match info.imports.iter().find(|import| !allowed(import)) {
        Some(import) => Err(LoadError::NotGranted { name: info.name.clone(), import: import.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Call;
    use molt_core::settings::Limits;

    /// A reward with as many memories and tables.
    fn reward(memories: usize, tables: usize) -> Vec<u8> {
        let text = format!(
            r#"(component
                 (core module $m {} {} (func (export "score")))
                 (core instance $i (instantiate $m))
                 (func $score (canon lift (core func $i "score")))
                 (instance $reward (export "score" (func $score)))
                 (export "molt:plugin/reward@0.2.0" (instance $reward)))"#,
            "(memory 1)".repeat(memories),
            "(table 1 funcref)".repeat(tables)
        );
        wat::parse_str(text).expect("well-formed")
    }

    #[tokio::test]
    async fn who_has_a_slot_has_room_in_the_pool() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let sandbox = Sandbox {
            engines: Arc::new(Engines::new(None, 8, 8).expect("the runtime starts")),
            rewards: Arc::new(Semaphore::new(8)),
            ..Sandbox::new(None).expect("the runtime starts")
        };
        for (memories, tables, fit) in [(1, 1, 8), (2, 4, 8), (3, 1, 4), (1, 16, 2), (4, 9, 2)] {
            let path = dir.path().join("crowd.wasm");
            std::fs::write(&path, reward(memories, tables)).expect("written");
            let name = path.to_str().expect("UTF-8");
            let (library, access) = (Library::new(&[]), Limits::default().into());
            let loaded = sandbox.load(&library, name, access, Kind::Reward, &sandbox.rewards);
            let (plugin, component) = loaded.expect("it is loaded");
            let mut held = Vec::new();
            while let Some(mut store) = plugin.store_now(Call::NONE) {
                let run = async |store: &mut wasmtime::Store<Data>| component.instantiate_async(store).await;
                let made = plugin.run(&mut store, None, run).await;
                held.push((made.expect("there is room"), store));
            }
            assert_eq!(held.len(), fit, "{memories} memories, {tables} tables");
        }
    }
}
