//! What a call cost and printed, for an author who measures a plugin or tries it by hand.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of the guest and of the host functions that it called.
    pub cpu: Duration,
    /// WebAssembly instructions. None without a limit of them: then they are not counted.
    pub fuel: Option<u64>,
    /// Memory of the instance after the call, in bytes.
    pub memory: usize,
    /// What the call printed, without control characters; the last `log_kib` of it.
    pub printed: String,
}

/// Who is told of every call.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&Cost) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
