//! The grants `real_clock` and `real_random`.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use wasmtime::component::Linker;
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::{HostWallClock, WasiCtxBuilder};

use crate::plugin::Data;

/// The time of day.
struct Today;

impl HostWallClock for Today {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

/// Gives a new instance the time of day.
pub(crate) fn clock(wasi: &mut WasiCtxBuilder) {
    wasi.wall_clock(Today);
}

/// Links `wasi:clocks/monotonic-clock` to time that passes by itself.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    monotonic_clock::add_to_linker::<Data, WasiClocks>(linker, Data::clocks)
}

/// Randomness from the operating system, drawn once for a plugin and handed on to its instances.
pub(crate) struct Entropy(Mutex<ChaCha12Rng>);

impl Entropy {
    pub(crate) fn new() -> io::Result<Self> {
        let mut seed = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut seed)?;
        Ok(Self(Mutex::new(ChaCha12Rng::from_seed(seed))))
    }

    /// Gives a new instance randomness of its own.
    pub(crate) fn give(&self, wasi: &mut WasiCtxBuilder) {
        let mut source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = || {
            let mut seed = [0; 32];
            source.fill_bytes(&mut seed);
            ChaCha12Rng::from_seed(seed)
        };
        wasi.secure_random(fresh()).insecure_random(fresh());
        wasi.insecure_random_seed(u128::from(source.next_u64()));
    }
}
