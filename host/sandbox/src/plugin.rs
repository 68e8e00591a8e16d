//! A loaded component, and one guarded call into a fresh instance of it.

use molt_core::ids::RolloutId;
use molt_core::settings::Limits;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use wasmtime::component::{InstancePre, ResourceTable};
use wasmtime::{Engine, PoolConcurrencyLimitError, Store, Trap, WasmBacktrace};
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};

use crate::clock::Clock;
use crate::contract::Contract;
use crate::error::{Cause, Failure, LoadError};
use crate::grant::{Granted, NoMoreFiles, State};
use crate::info::Info;
use crate::limit::{MemoryLimit, Meter, OutOfTime, TooManyHostCalls, watch};
use crate::log::Log;
use crate::observe::{Cost, Observer};
use crate::refuse::Denied;
use crate::{quote, trace};

/// Random bytes that a guest may ask for at once: the host allocates them before they reach guest memory.
const RANDOM_BYTES: u64 = 1 << 20;

/// Handles that an instance may hold at a time; the host keeps what is behind each. That is little, but of HTTP it is
/// 32 KiB of headers, and as much of a body.
const HANDLES: usize = 10_000;
const HANDLES_WITH_HTTP: usize = 1000;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Named in a failure.
    pub rollout: Option<RolloutId>,
    /// All randomness that the instance sees.
    pub seed: u64,
}

impl Call {
    /// A call that is not about one rollout and sees no randomness of its own.
    pub(crate) const NONE: Self = Self { rollout: None, seed: 0 };
}

/// What is common to plugins of every kind.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    pub(crate) info: Arc<Info>,
    pub(crate) contract: Contract,
    pub(crate) limits: Limits,
    pub(crate) granted: Arc<Granted>,
    pub(crate) engine: Engine,
    /// How many instances of this plugin, and of all plugins of its kind, may be alive; the next one waits.
    pub(crate) slots: [Arc<Semaphore>; 2],
    /// How many of the latter one instance takes.
    pub(crate) places: u32,
    pub(crate) observer: Option<Observer>,
}

/// The host's side of one instance.
pub(crate) struct Data {
    wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) clock: Clock,
    memory: MemoryLimit,
    pub(crate) meter: Meter,
    log: Log,
    /// What the instance holds of what it was granted.
    pub(crate) grants: State,
    /// How often the call in progress called the host.
    pub(crate) host_calls: u64,
    /// Given back when the instance is gone.
    _slots: [OwnedSemaphorePermit; 2],
}

impl Data {
    /// Counts one call of the host. Every function that is linked comes by here when it asks for its state.
    pub(crate) fn counted(&mut self) -> &mut Self {
        self.host_calls += 1;
        self
    }
}

impl WasiView for Data {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let Self { wasi, table, .. } = self.counted();
        WasiCtxView { ctx: wasi, table }
    }
}

impl Plugin {
    /// The host's side of a new instance: an empty world whose randomness is `seed`, and the limits.
    /// Waits while as many instances are alive as may be.
    pub(crate) async fn store(&self, call: Call) -> Store<Data> {
        let [own, kind] = &self.slots;
        let slot = async |slots: &Arc<Semaphore>, places| {
            slots.clone().acquire_many_owned(places).await.expect("the semaphore is never closed")
        };
        let slots = [slot(own, 1).await, slot(kind, self.places).await];
        self.store_in(slots, call)
    }

    /// As [`store`](Self::store), if there is room for an instance right now.
    pub(crate) fn store_now(&self, call: Call) -> Option<Store<Data>> {
        let [own, kind] = &self.slots;
        let slots =
            [own.clone().try_acquire_owned().ok()?, kind.clone().try_acquire_many_owned(self.places).ok()?];
        Some(self.store_in(slots, call))
    }

    fn store_in(&self, slots: [OwnedSemaphorePermit; 2], call: Call) -> Store<Data> {
        let seed = call.seed;
        let log = Log::new(kib(self.limits.log_kib));
        let clock = Clock::default();
        let mut wasi = WasiCtx::builder();
        wasi.stdout(log.clone())
            .stderr(log.clone())
            .secure_random(ChaCha12Rng::seed_from_u64(seed))
            .insecure_random(ChaCha12Rng::seed_from_u64(!seed))
            .insecure_random_seed(u128::from(seed))
            .max_random_size(RANDOM_BYTES)
            .wall_clock(clock.clone());
        let grants = self.granted.state(call, &mut wasi);
        let memory = MemoryLimit::new(&self.limits);
        let handles = if self.granted.has_http() { HANDLES_WITH_HTTP } else { HANDLES };
        let mut table = ResourceTable::new();
        // One more, so that it is the handle that is refused, in words that a guest's author knows.
        table.set_max_capacity(handles + 1);
        let wasi = wasi.build();
        let data = Data {
            wasi,
            table,
            clock,
            memory,
            meter: Meter::default(),
            log,
            grants,
            host_calls: 0,
            _slots: slots,
        };
        let mut store = Store::new(&self.engine, data);
        store.limiter(|data| &mut data.memory);
        store.set_hostcall_fuel(kib(self.limits.output_kib));
        store.set_max_component_handles(handles);
        watch(&mut store, &self.limits);
        store
    }

    /// Runs one call under the plugin's limits.
    pub(crate) async fn run<T>(
        &self,
        store: &mut Store<Data>,
        rollout: Option<RolloutId>,
        call: impl AsyncFnOnce(&mut Store<Data>) -> wasmtime::Result<T>,
    ) -> Result<T, Failure> {
        let limits = &self.limits;
        let data = store.data_mut();
        // A growth that an earlier call of the instance did without does not explain a failure of this one.
        data.memory.refused = None;
        data.host_calls = 0;
        let meter = data.meter.clone();
        store.set_epoch_deadline(1);
        let fuel = limits.fuel.map_or(Ok(()), |fuel| store.set_fuel(fuel));
        let timed = tokio::time::timeout(Duration::from_secs(limits.call_s), async {
            fuel?;
            meter.measure(call(&mut *store)).await
        });
        let ended = timed.await;
        // The failure quotes what was printed, so it is made before the observer takes that.
        let result = self.judge(store, rollout, ended);
        self.told(store);
        result
    }

    /// Asks a fresh instance for two numbers of each of `numbers` tokens or rollouts, and checks what it says.
    pub(crate) async fn numbers<T, R>(
        &self,
        numbers: usize,
        call: impl AsyncFnOnce(&mut Store<Data>) -> wasmtime::Result<Result<T, String>>,
        checked: impl FnOnce(T) -> Result<R, Cause>,
    ) -> Result<R, Failure> {
        let mut store = self.store(Call::NONE).await;
        // They are what is asked for; the limit is on what comes beyond.
        let due = 2 * size_of::<f32>() * numbers;
        store.set_hostcall_fuel(kib(self.limits.output_kib).saturating_add(due));
        let answer = self.run(&mut store, None, call).await?;
        let found = answer.map_err(|why| Cause::Reported(quote::beginning(&why))).and_then(checked);
        let found = found.map_err(|cause| self.failure(None, cause, Some(store.data())));
        // Clearing tens of megabytes for the next instance is nothing that the trainer need wait for.
        tokio::task::spawn_blocking(move || drop(store));
        found
    }

    /// What came of a call.
    fn judge<T>(
        &self,
        store: &Store<Data>,
        rollout: Option<RolloutId>,
        ended: Result<wasmtime::Result<T>, Elapsed>,
    ) -> Result<T, Failure> {
        let limits = &self.limits;
        let (cause, trace) = match ended {
            Ok(Ok(_)) if store.data().host_calls > limits.host_calls => {
                (Cause::HostCalls { limit: limits.host_calls }, Box::default())
            }
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => (self.cause(&error, store.data()), trace::of(&error)),
            // It waited for what others hold, which is no fault of its own.
            Err(_) if store.data().grants.waits_for_a_session() => {
                (Cause::Full("all sessions of its interpreter are taken".into()), Box::default())
            }
            Err(_) => (Cause::Time { limit_s: limits.call_s }, Box::default()),
        };
        Err(Failure { trace, ..self.failure(rollout, cause, Some(store.data())) })
    }

    /// Makes an instance and drops it.
    pub(crate) async fn instantiate(&self, component: &InstancePre<Data>) -> Result<(), Failure> {
        let mut store = self.store(Call::NONE).await;
        let run = async |store: &mut Store<Data>| component.instantiate_async(store).await;
        self.run(&mut store, None, run).await.map(drop)
    }

    /// Tells the observer, if there is one, what a call cost.
    fn told(&self, store: &mut Store<Data>) {
        let Some(Observer(told)) = &self.observer else { return };
        let left = store.get_fuel().ok();
        let fuel = self.limits.fuel.zip(left).map(|(limit, left)| limit.saturating_sub(left));
        let data = store.data();
        let cost =
            Cost { cpu: data.meter.total(), fuel, memory: data.memory.used(), printed: data.log.take() };
        told(&cost);
    }

    /// The interpreter that the plugin was granted, as it was loaded.
    pub(crate) fn interpreter(&self) -> Option<&Info> {
        self.granted.interpreter()
    }

    /// The failure of a call: `data` holds what the instance printed.
    pub(crate) fn failure(&self, rollout: Option<RolloutId>, cause: Cause, data: Option<&Data>) -> Failure {
        let log = data.map_or_else(String::new, |data| data.log.tail());
        Failure { plugin: self.info.name.clone(), rollout, cause, log, trace: Box::default() }
    }

    /// The component's exports are not those of its world.
    pub(crate) fn mismatch(&self, error: &wasmtime::Error) -> LoadError {
        LoadError::Link { name: self.info.name.clone(), reason: quote::beginning(&format!("{error:#}")) }
    }

    /// Why wasmtime ended a call.
    fn cause(&self, error: &wasmtime::Error, data: &Data) -> Cause {
        if let Some(Denied(what)) = error.downcast_ref() {
            return Cause::Denied(what.clone());
        }
        if error.is::<OutOfTime>() {
            return Cause::Cpu { limit_ms: self.limits.cpu_ms };
        }
        if error.is::<TooManyHostCalls>() {
            return Cause::HostCalls { limit: self.limits.host_calls };
        }
        // The type of this error is private to wasmtime. Only the innermost is looked at: the text of a backtrace
        // has names demangled, and a few bytes of a name can be gigabytes of text.
        if error.root_cause().to_string().contains("too much data is being copied") {
            return Cause::Output { limit_kib: self.limits.output_kib };
        }
        if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
            return Cause::Full(full.to_string());
        }
        if let Some(full) = error.downcast_ref::<NoMoreFiles>() {
            return Cause::Full(full.to_string());
        }
        if let Some(refused) = &data.memory.refused {
            return refused.clone();
        }
        if let Some(I32Exit(status)) = error.downcast_ref() {
            return Cause::Trap(format!("it exited with status {status}"));
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::StackOverflow) => Cause::Stack,
            Some(Trap::OutOfFuel) => Cause::Fuel { limit: self.limits.fuel.unwrap_or(0) },
            Some(Trap::MemoryOutOfBounds) if is_recursion(error) => Cause::Stack,
            Some(trap) => Cause::Trap(trap.to_string()),
            // What goes wrong outside of the guest's code is that the host cannot read what it returned.
            None if !error.is::<WasmBacktrace>() => {
                Cause::BadReturn(quote::beginning(&error.root_cause().to_string()))
            }
            None => Cause::Trap(quote::beginning(&error.root_cause().to_string())),
        }
    }
}

/// KiB as bytes.
fn kib(kib: u64) -> usize {
    usize::try_from(kib.saturating_mul(1024)).unwrap_or(usize::MAX)
}

/// Languages that keep their own stack at the bottom of linear memory run out of bounds when it overflows.
/// Then the innermost frames that wasmtime recorded, twenty at most, are few functions many times.
fn is_recursion(error: &wasmtime::Error) -> bool {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return false };
    let mut functions: Vec<u32> = trace.frames().iter().map(|frame| frame.func_index()).collect();
    let depth = functions.len();
    functions.sort_unstable();
    functions.dedup();
    depth >= 16 && functions.len() * 2 <= depth
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::Kind;
    use wasmtime::{Config, Instance, Module, PoolingAllocationConfig};

    #[tokio::test]
    async fn no_room_for_an_instance_is_not_the_plugins_fault() {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_core_instances(0);
        let engine = Engine::new(Config::new().allocation_strategy(pool)).expect("a pool without room");
        let info = Info {
            name: "innocent".into(),
            kind: Kind::Reward,
            version: None,
            description: None,
            contract: "0.1.0".into(),
            digest: String::new(),
            size: 8,
            path: "innocent.wasm".into(),
            imports: vec![],
        };
        let module = Module::new(&engine, b"\0asm\x01\0\0\0").expect("the empty module");
        let slots = [1, 1].map(|count| Arc::new(Semaphore::new(count)));
        let contract = Contract::V0_2;
        let plugin = Plugin {
            info: Arc::new(info),
            contract,
            limits: Limits::default(),
            granted: Arc::default(),
            engine,
            slots,
            places: 1,
            observer: None,
        };
        let mut store = plugin.store(Call::NONE).await;
        let call = async |store: &mut Store<Data>| Instance::new_async(store, &module, &[]).await;
        let failure = plugin.run(&mut store, None, call).await.expect_err("there is no room");
        assert_eq!(failure.label(), "sandbox-full", "{failure}");
    }
}
