//! How far a rank has come, for those that look after it from another thread.

use std::sync::{Arc, Mutex, PoisonError};

/// The collectives that a thread has begun. Clones are handles to the same.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<(u64, String)>>);

thread_local! {
    static OWN: Progress = Progress::default();
}

impl Progress {
    /// That of the thread that calls.
    pub fn own() -> Self {
        OWN.with(Clone::clone)
    }

    /// How many it has begun, and what the last of them is, or was.
    pub fn begun(&self) -> (u64, String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin(&self, collective: String) {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *begun = (begun.0 + 1, collective);
    }
}
