//! The engine that plugins run on, and how one is loaded.

use molt_core::settings::{Access, GrantedModel};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Cache, CacheConfig, Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};
use wasmtime_wasi::WasiView;
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::p2::bindings::{cli, random};
use wasmtime_wasi::random::WasiRandom;

use crate::environment::Environment;
use crate::error::LoadError;
use crate::estimator::Estimator;
use crate::grant::Granted;
use crate::info::{Info, Kind};
use crate::interpreter::Interpreter;
use crate::library::Library;
use crate::limit::{CORE_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};
use crate::model::ChatModel;
use crate::plugin::{Data, Plugin};
use crate::reward::Reward;
use crate::{clock, refuse};

/// The version of `molt:plugin` whose worlds this host runs. A plugin built against any 0.2.x fits.
const CONTRACT: &str = "0.2";

/// How often the CPU time of a running guest is looked at, and other tasks get a turn.
const TICK: Duration = Duration::from_millis(5);

/// Episodes that may be open at a time, over all environments. More wait.
const EPISODES: u32 = 1024;

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
    engine: Engine,
    linker: Linker<Data>,
    episodes: Arc<Semaphore>,
    rewards: Arc<Semaphore>,
    estimates: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    models: Arc<Models>,
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
        let cache = cache_dir.map(open_cache).transpose()?;
        let engine = engine(cache)?;
        start_ticker(&engine)?;
        let linker = basics(&engine).map_err(runtime)?;
        let slots = |count: u32| Arc::new(Semaphore::new(count as usize));
        Ok(Self {
            engine,
            linker,
            episodes: slots(EPISODES),
            rewards: slots(REWARDS),
            estimates: slots(ESTIMATES),
            sessions: slots(SESSIONS),
            models: Arc::default(),
        })
    }

    /// Answers the questions of plugins that were granted `which`, loaded or yet to be loaded, with `model`.
    /// Until then they are told that it is not available.
    pub fn provide(&self, which: GrantedModel, model: Arc<dyn ChatModel>) {
        self.models.0.write().unwrap_or_else(PoisonError::into_inner)[which as usize] = Some(model);
    }

    /// The models of the run, to be asked when a plugin asks.
    #[expect(dead_code, reason = "the grant `model` reads it")]
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

    /// Loads the environment plugin called `name`. Errors as for [`reward`](Self::reward).
    ///
    /// # Errors
    /// It is not found, not an environment, built against another contract, or imports what is not granted.
    pub fn environment(
        &self,
        library: &Library,
        name: &str,
        access: impl Into<Access>,
    ) -> Result<Environment, LoadError> {
        let (plugin, component) = self.load(library, name, access.into(), Kind::Environment, &self.episodes)?;
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
        let (plugin, component) = self.load(library, name, access.into(), Kind::Estimator, &self.estimates)?;
        Estimator::new(plugin, component)
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
        let (info, bytes) = library.read(name)?;
        let granted = Granted::new(self, library, &info.name, &access)?;
        check(&info, wanted, &granted)?;
        let link = |error: wasmtime::Error| LoadError::Link {
            name: info.name.clone(),
            reason: format!("{error:#}"),
        };
        let component = Component::from_binary(&self.engine, &bytes).map_err(link)?;
        let mut linker = self.linker.clone();
        refuse::link(&mut linker, &self.engine, &component).map_err(link)?;
        linker.allow_shadowing(true);
        granted.link(&mut linker, &self.engine, &component).map_err(link)?;
        let component = linker.instantiate_pre(&component).map_err(link)?;
        tracing::debug!(plugin = info.name, kind = %info.kind, digest = info.digest, "loaded");
        let plugin = Plugin {
            info: Arc::new(info),
            limits: access.limits,
            granted: Arc::new(granted),
            engine: self.engine.clone(),
            slots: slots.clone(),
        };
        Ok((plugin, component))
    }
}

/// Whether a plugin is of the wanted kind, of our contract, and asks for nothing that is not granted.
fn check(info: &Info, wanted: Kind, granted: &Granted) -> Result<(), LoadError> {
    let name = info.name.clone();
    if info.contract.strip_prefix(CONTRACT).is_none_or(|patch| !patch.starts_with('.')) {
        let found = info.contract.clone();
        return Err(LoadError::Contract { name, found, supported: "0.2.x" });
    }
    if info.kind != wanted {
        return Err(LoadError::WrongKind { name, found: info.kind, wanted });
    }
    match info.imports.iter().find(|import| !is_harmless(import) && !granted.allows(import)) {
        Some(import) => Err(LoadError::NotGranted { name, import: import.clone() }),
        None => Ok(()),
    }
}

/// The interfaces of WASI 0.2 that any plugin may import. Files and sockets among them refuse every request.
fn is_harmless(import: &str) -> bool {
    let Some((interface, version)) = import.split_once('@') else { return false };
    let packages = ["wasi:cli/", "wasi:clocks/", "wasi:io/", "wasi:random/"];
    version.starts_with("0.2.") && packages.iter().chain(&refuse::REFUSED).any(|p| interface.starts_with(p))
}

/// Links what every instance gets: its own output, virtual time, seeded randomness, and empty everything else.
fn basics(engine: &Engine) -> wasmtime::Result<Linker<Data>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;
    wasmtime_wasi::p2::add_to_linker_proxy_interfaces_async(l)?;
    random::insecure::add_to_linker::<Data, WasiRandom>(l, |data| data.ctx().ctx.random())?;
    random::insecure_seed::add_to_linker::<Data, WasiRandom>(l, |data| data.ctx().ctx.random())?;
    cli::environment::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::exit::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_input::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_output::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stdin::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stdout::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    cli::terminal_stderr::add_to_linker::<Data, WasiCli>(l, Data::cli)?;
    l.allow_shadowing(true);
    clock::link(l)?;
    l.allow_shadowing(false);
    Ok(linker)
}

fn engine(cache: Option<Cache>) -> Result<Engine, LoadError> {
    let mut config = Config::new();
    config
        .cache(cache)
        .epoch_interruption(true)
        .max_wasm_stack(512 << 10)
        .async_stack_size(2 << 20)
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .allocation_strategy(pool());
    Engine::new(&config).or_else(|error| {
        // A process whose address space is limited cannot reserve the pool. Then instances are made one by one,
        // and their memories are moved when they grow.
        tracing::debug!("no pool of instances: {error:#}");
        config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
        config.memory_reservation(0).memory_reservation_for_growth(1 << 20).memory_guard_size(64 << 10);
        Engine::new(&config).map_err(runtime)
    })
}

/// Room for all instances that may be alive at a time, reserved and not yet used.
fn pool() -> PoolingAllocationConfig {
    let instances = EPISODES + REWARDS + ESTIMATES + SESSIONS + SPARE;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_stacks(instances)
        // As many as one component may have, times the instances: large components can be alive together too.
        .total_core_instances(CORE_INSTANCES as u32 * instances)
        .total_memories(MEMORIES as u32 * instances)
        .total_tables(TABLES as u32 * instances)
        .max_core_instances_per_component(CORE_INSTANCES as u32)
        .max_memories_per_component(MEMORIES as u32)
        .max_tables_per_component(TABLES as u32)
        .max_tables_per_module(TABLES as u32)
        .max_memories_per_module(MEMORIES as u32)
        .table_elements(TABLE_ELEMENTS)
        .max_core_instance_size(4 << 20)
        .max_component_instance_size(4 << 20)
        .max_memory_size(4 << 30);
    pool
}

fn open_cache(dir: &Path) -> Result<Cache, LoadError> {
    let unusable = |source| LoadError::Cache { path: dir.to_owned(), source };
    // Code in here is run as it is found, so nobody else may write to it.
    create_private(dir).map_err(unusable)?;
    let mut config = CacheConfig::new();
    config.with_directory(dir.canonicalize().map_err(unusable)?);
    Cache::new(config).map_err(|error| unusable(std::io::Error::other(format!("{error:#}"))))
}

fn create_private(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Moves the engine's epoch on until the last sandbox and plugin of the engine are gone.
fn start_ticker(engine: &Engine) -> Result<(), LoadError> {
    let weak = engine.weak();
    let tick = move || {
        while let Some(engine) = weak.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    };
    let thread = std::thread::Builder::new().name("molt-epoch".into()).spawn(tick);
    thread.map(drop).map_err(|error| LoadError::Runtime { reason: error.to_string() })
}

fn runtime(error: wasmtime::Error) -> LoadError {
    LoadError::Runtime { reason: format!("{error:#}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::Module;

    /// A core module with one table of `elements`, a number of three bytes in LEB128.
    fn table_of(elements: usize) -> Vec<u8> {
        let leb = [elements as u8 | 0x80, (elements >> 7) as u8 | 0x80, (elements >> 14) as u8];
        [b"\0asm\x01\0\0\0\x04\x06\x01\x70\0".as_slice(), &leb].concat()
    }

    #[test]
    fn one_table_may_have_all_elements_that_the_limit_allows() {
        let engine =
            Engine::new(Config::new().allocation_strategy(pool())).expect("address space for the pool");
        assert!(Module::new(&engine, table_of(TABLE_ELEMENTS)).is_ok());
        assert!(Module::new(&engine, table_of(TABLE_ELEMENTS + 1)).is_err());
    }
}
