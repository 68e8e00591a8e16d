//! Virtual time: a guest's clocks depend on nothing but what it did itself, so that an episode replays exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::HostWallClock;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi_io::async_trait;

use crate::plugin::Data;

/// Midnight of 1 January 2000 UTC, when every instance starts.
const START: Duration = Duration::from_secs(946_684_800);

/// What one reading of the clock takes, so that a guest that waits for time to pass gets there.
const TICK_NS: u64 = 1000;

/// The time of one instance, in nanoseconds since its start. Sleeping moves it on and takes no real time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    fn read(&self) -> u64 {
        self.0.fetch_add(TICK_NS, Ordering::Relaxed)
    }
}

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(TICK_NS)
    }

    fn now(&self) -> Duration {
        START + Duration::from_nanos(self.read())
    }
}

/// Links `wasi:clocks/monotonic-clock` to the instance's virtual time.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    monotonic_clock::add_to_linker::<Data, VirtualTime>(linker, |data| {
        let data = data.counted();
        let clock = data.clock.clone();
        View { clock, table: &mut data.table }
    })
}

struct VirtualTime;

impl HasData for VirtualTime {
    type Data<'a> = View<'a>;
}

struct View<'a> {
    clock: Clock,
    table: &'a mut ResourceTable,
}

impl monotonic_clock::Host for View<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.clock.read())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(TICK_NS)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let alarm = self.table.push(Alarm { clock: self.clock.clone(), when })?;
        subscribe(self.table, alarm)
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let when = self.clock.read().saturating_add(duration);
        self.subscribe_instant(when)
    }
}

/// Ready at once: waiting for it is what moves the clock.
struct Alarm {
    clock: Clock,
    when: u64,
}

#[async_trait]
impl Pollable for Alarm {
    async fn ready(&mut self) {
        self.clock.0.fetch_max(self.when, Ordering::Relaxed);
    }
}
