//! Memory and CPU time of one instance: what it may use, what it used, and why it was stopped.

use molt_core::settings::Limits;
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use wasmtime::{ResourceLimiter, Store, UpdateDeadline};

use crate::error::Cause;
use crate::plugin::Data;

/// Core instances of a component: its modules and the adapters between them.
pub(crate) const CORE_INSTANCES: usize = 32;

/// Tables of a component.
pub(crate) const TABLES: usize = 16;

/// Linear memories of a component.
pub(crate) const MEMORIES: usize = 4;

/// The memory of one instance: linear memories in bytes, and tables in elements.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    mib: u64,
    bytes: usize,
    used: usize,
    /// Elements of all tables that it may have, and that it has.
    table_elements: usize,
    elements: usize,
    /// The last growth that a limit of ours refused: if the guest then fails, this is why. A bound that the
    /// plugin declares for itself refuses without a word here.
    pub(crate) refused: Option<Cause>,
}

impl MemoryLimit {
    pub(crate) fn new(limits: &Limits) -> Self {
        let (mib, table_elements) = (limits.memory_mib, limits.table_elements);
        let bytes = usize::try_from(mib.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
        Self { mib, bytes, used: 0, table_elements, elements: 0, refused: None }
    }

    /// What its linear memories have, in bytes.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.bytes {
            self.refused = Some(Cause::Memory { limit_mib: self.mib });
            return Ok(false);
        }
        let fits = maximum.is_none_or(|maximum| desired <= maximum);
        if fits {
            self.used = used;
        }
        Ok(fits)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let elements = self.elements.saturating_add(desired.saturating_sub(current));
        if elements > self.table_elements {
            self.refused = Some(Cause::Tables { limit: self.table_elements });
            return Ok(false);
        }
        let fits = maximum.is_none_or(|maximum| desired <= maximum);
        if fits {
            self.elements = elements;
        }
        Ok(fits)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

/// The CPU time of the call in progress. Time in which the guest is suspended does not count, nor does time
/// in which the operating system runs something else.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Arc<Times>);

#[derive(Debug, Default)]
struct Times {
    /// In earlier polls of the call.
    used: AtomicU64,
    /// The thread's CPU time when the poll in progress began.
    began: AtomicU64,
}

/// The guest used up its CPU time.
#[derive(Debug, Error)]
#[error("out of CPU time")]
pub(crate) struct OutOfTime;

impl Meter {
    fn used(&self) -> Duration {
        let poll = thread_cpu_ns().saturating_sub(self.0.began.load(Ordering::Relaxed));
        Duration::from_nanos(self.0.used.load(Ordering::Relaxed) + poll)
    }

    /// Of the call that ended last.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.used.load(Ordering::Relaxed))
    }

    /// Runs one call and counts the CPU time of its polls.
    pub(crate) async fn measure<T>(&self, call: impl Future<Output = T>) -> T {
        self.0.used.store(0, Ordering::Relaxed);
        let mut call = pin!(call);
        std::future::poll_fn(|context| {
            self.0.began.store(thread_cpu_ns(), Ordering::Relaxed);
            let poll = call.as_mut().poll(context);
            let used = self.used().as_nanos();
            self.0.used.store(u64::try_from(used).unwrap_or(u64::MAX), Ordering::Relaxed);
            poll
        })
        .await
    }
}

/// The guest called the host too often.
#[derive(Debug, Error)]
#[error("too many calls of the host")]
pub(crate) struct TooManyHostCalls;

/// Checks the CPU time and the calls of the host at every epoch, and lets other tasks of the thread run. The
/// host is not interrupted, nor is one copy within the guest's memory, so both must be bounded in themselves.
pub(crate) fn watch(store: &mut Store<Data>, limits: &Limits) {
    let (cpu, host_calls) = (Duration::from_millis(limits.cpu_ms), limits.host_calls);
    store.epoch_deadline_callback(move |store| {
        let data = store.data();
        if data.meter.used() > cpu {
            Err(OutOfTime.into())
        } else if data.host_calls > host_calls {
            Err(TooManyHostCalls.into())
        } else {
            Ok(UpdateDeadline::Yield(1))
        }
    });
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let ns = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELEMENTS: usize = 1000;

    fn limit() -> MemoryLimit {
        MemoryLimit::new(&Limits { memory_mib: 1, table_elements: ELEMENTS, ..Limits::default() })
    }

    #[test]
    fn growth_is_counted_over_all_memories() {
        let mut limit = limit();
        let half = 1 << 19;
        let mut grow = |from, to| limit.memory_growing(from, to, None).expect("never fails");
        assert!(grow(0, half));
        assert!(grow(0, half));
        assert!(!grow(half, half + 65536));
        assert_eq!(limit.refused, Some(Cause::Memory { limit_mib: 1 }));
    }

    #[test]
    fn elements_are_counted_over_all_tables() {
        let mut limit = limit();
        let mut grow = |from, to| limit.table_growing(from, to, None).expect("never fails");
        assert!(grow(0, ELEMENTS - 1));
        assert!(grow(0, 1));
        assert!(!grow(1, 2));
        assert_eq!(limit.refused, Some(Cause::Tables { limit: ELEMENTS }));
    }

    #[test]
    fn a_bound_of_the_plugins_own_is_not_our_limit() {
        let mut limit = limit();
        assert!(!limit.memory_growing(0, 2, Some(1)).expect("never fails"));
        assert!(!limit.table_growing(0, 2, Some(1)).expect("never fails"));
        assert_eq!((limit.refused, limit.used, limit.elements), (None, 0, 0));
    }

    #[tokio::test]
    async fn waiting_is_not_counted() {
        let meter = Meter::default();
        // The clock of a thread that sleeps stands still, however long it takes.
        meter.measure(tokio::time::sleep(Duration::from_millis(60))).await;
        let waited = Duration::from_nanos(meter.0.used.load(Ordering::Relaxed));
        assert!(waited < Duration::from_millis(50), "{waited:?}");
        meter
            .measure(async {
                let start = thread_cpu_ns();
                while thread_cpu_ns() < start + 5_000_000 {}
            })
            .await;
        let worked = Duration::from_nanos(meter.0.used.load(Ordering::Relaxed));
        assert!(worked >= Duration::from_millis(5), "{worked:?}");
    }
}
