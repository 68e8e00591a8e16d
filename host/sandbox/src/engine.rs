//! The engines that plugins run on: one that nearly all share, one for estimators and losses, and others for limits that change
//! how code is compiled.

use molt_core::settings::Limits;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wasmtime::component::{Component, Linker};
use wasmtime::{
    Cache, CacheConfig, Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig,
    WasmBacktraceDetails,
};

use crate::error::LoadError;
use crate::info::Kind;
use crate::limit::{CORE_INSTANCES, MEMORIES, TABLES};
use crate::plugin::Data;
use crate::wasi;

/// How often the CPU time of a running guest is looked at, and other tasks get a turn.
const TICK: Duration = Duration::from_millis(5);

/// Elements that one table of the shared engine may have: several times what large language runtimes need.
const TABLE_ELEMENTS: usize = 200_000;

/// Memories and tables that the pool has for each instance. One that has more takes the places of several.
const MEMORIES_EACH: u32 = 2;
const TABLES_EACH: u32 = 4;

/// Stack for the host's functions, beyond what the guest may use, in KiB.
const HOST_STACK_KIB: usize = 1536;

/// What is kept of a table and of a stack for the next instance that takes the place, in bytes: clearing that much
/// is cheaper than having it mapped anew. Memories are kept for estimators alone: theirs are large and few.
const KEPT_TABLE: usize = 4 << 10;
const KEPT_STACK: usize = 16 << 10;
const KEPT_ESTIMATE: usize = 32 << 20;

/// The limits that an engine is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    fuel: bool,
    stack_kib: usize,
    /// Whether its tables fit into the pool of the shared engine.
    small_tables: bool,
    /// Whether estimators and losses run on it.
    estimates: bool,
}

impl Shape {
    fn of(limits: &Limits, kind: Kind) -> Self {
        Self {
            estimates: matches!(kind, Kind::Estimator | Kind::Loss),
            fuel: limits.fuel.is_some(),
            stack_kib: limits.stack_kib,
            small_tables: limits.table_elements <= TABLE_ELEMENTS,
        }
    }
}

/// An engine and what every plugin on it is linked to.
#[derive(Clone)]
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<Data>,
}

/// The engines of one sandbox. Those for unusual limits are made when a plugin first needs them.
pub(crate) struct Engines {
    cache: Option<Cache>,
    /// Instances that may be alive at a time, of estimators and of all other kinds.
    estimates: u32,
    others: u32,
    started: Mutex<HashMap<Shape, Runtime>>,
}

impl Engines {
    /// Starts the shared engine, with room for `others`; that of estimators will have room for `estimates`.
    pub(crate) fn new(cache_dir: Option<&Path>, estimates: u32, others: u32) -> Result<Self, LoadError> {
        let cache = cache_dir.map(open_cache).transpose()?;
        let engines = Self { cache, estimates, others, started: Mutex::default() };
        engines.of(&Limits::default(), Kind::Reward)?;
        Ok(engines)
    }

    /// The engine for plugins of a kind with these limits.
    pub(crate) fn of(&self, limits: &Limits, kind: Kind) -> Result<Runtime, LoadError> {
        let shape = Shape::of(limits, kind);
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = started.get(&shape) {
            return Ok(runtime.clone());
        }
        let engine = self.start(shape)?;
        start_ticker(&engine)?;
        let runtime = Runtime { linker: wasi::basics(&engine).map_err(failed)?, engine };
        started.insert(shape, runtime.clone());
        Ok(runtime)
    }

    fn start(&self, shape: Shape) -> Result<Engine, LoadError> {
        let stack = shape.stack_kib.saturating_mul(1024);
        let mut config = Config::new();
        // Which NaN an operation gives is the processor's, and an episode must replay anywhere. What an estimator
        // returns is finite, and making its NaNs alike takes as long as all else that it does.
        config
            .cache(self.cache.clone())
            .epoch_interruption(true)
            .consume_fuel(shape.fuel)
            .max_wasm_stack(stack)
            .async_stack_size(stack.saturating_add(HOST_STACK_KIB << 10))
            .cranelift_nan_canonicalization(!shape.estimates)
            .relaxed_simd_deterministic(true)
            .wasm_backtrace_details(WasmBacktraceDetails::Enable);
        if (Shape { estimates: false, ..shape }) != Shape::of(&Limits::default(), Kind::Reward) {
            return Engine::new(&config).map_err(failed);
        }
        let mut pool = pool(if shape.estimates { self.estimates } else { self.others });
        if shape.estimates {
            pool.linear_memory_keep_resident(KEPT_ESTIMATE);
        }
        config.allocation_strategy(pool);
        Engine::new(&config).or_else(|error| {
            // A process whose address space is limited cannot reserve the pool. Then instances are made one by
            // one, and their memories are moved when they grow.
            tracing::debug!("no pool of instances: {error:#}");
            config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
            config.memory_reservation(0).memory_reservation_for_growth(1 << 20).memory_guard_size(64 << 10);
            Engine::new(&config).map_err(failed)
        })
    }
}

/// How many places of the pool an instance of `component` takes.
pub(crate) fn places(component: &Component) -> u32 {
    let most = (MEMORIES as u32).div_ceil(MEMORIES_EACH).max((TABLES as u32).div_ceil(TABLES_EACH));
    component.resources_required().map_or(most, |needs| {
        let places = needs.num_memories.div_ceil(MEMORIES_EACH).max(needs.num_tables.div_ceil(TABLES_EACH));
        places.clamp(1, most)
    })
}

/// Room for `instances`, reserved and not yet used. A memory reserves 4 GiB of the address space, whose 128 TiB are
/// half used with two for each.
fn pool(instances: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_stacks(instances)
        .total_core_instances(CORE_INSTANCES as u32 * instances)
        .total_memories(MEMORIES_EACH * instances)
        .total_tables(TABLES_EACH * instances)
        .max_core_instances_per_component(CORE_INSTANCES as u32)
        .max_memories_per_component(MEMORIES as u32)
        .max_tables_per_component(TABLES as u32)
        .max_tables_per_module(TABLES as u32)
        .max_memories_per_module(MEMORIES as u32)
        .table_elements(TABLE_ELEMENTS)
        .max_core_instance_size(4 << 20)
        .max_component_instance_size(4 << 20)
        .max_memory_size(4 << 30)
        .table_keep_resident(KEPT_TABLE)
        .async_stack_keep_resident(KEPT_STACK);
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

fn failed(error: wasmtime::Error) -> LoadError {
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
    fn one_table_of_the_shared_engine_may_have_all_elements_that_it_is_made_for() {
        let config = Config::new().allocation_strategy(pool(1)).clone();
        let engine = Engine::new(&config).expect("address space for the pool");
        assert!(Module::new(&engine, table_of(TABLE_ELEMENTS)).is_ok());
        assert!(Module::new(&engine, table_of(TABLE_ELEMENTS + 1)).is_err());
        assert!(Limits::default().table_elements <= TABLE_ELEMENTS);
    }

    #[test]
    fn limits_that_change_how_code_is_compiled_have_engines_of_their_own() {
        let engines = Engines::new(None, 4, 4).expect("the runtime starts");
        let limits =
            |fuel, stack_kib, table_elements| Limits { fuel, stack_kib, table_elements, ..Limits::default() };
        let usual = Limits::default();
        let engine = |limits: &Limits| engines.of(limits, Kind::Reward).expect("an engine").engine;
        let same = |one: &Limits, other: &Limits| Engine::same(&engine(one), &engine(other));
        assert!(same(&usual, &Limits { memory_mib: 1, cpu_ms: 1, ..usual }));
        assert!(!same(&usual, &limits(Some(9), usual.stack_kib, 1)));
        assert!(same(&limits(Some(8), 64, 1), &limits(Some(9), 64, 1)));
        assert!(!same(&usual, &limits(None, 64, 1)));
        assert!(!same(&usual, &limits(None, usual.stack_kib, TABLE_ELEMENTS + 1)));
        let estimates = engines.of(&usual, Kind::Estimator).expect("an engine").engine;
        assert!(!Engine::same(&engine(&usual), &estimates));
    }
}
