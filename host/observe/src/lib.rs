//! What a person can see of a run: the run directory, the progress line, the curves.
//!
//! This crate knows names and numbers, never tensors, plugins or the trainer.

mod curves;
mod error;
mod lock;
mod metrics;
mod progress;
mod rundir;
mod tensorboard;

pub use curves::{Panel, draw_curves};
pub use error::ObserveError;
pub use lock::Lock;
pub use metrics::{Row, read_metrics};
pub use progress::{LogWriter, Progress};
pub use rundir::RunDir;
