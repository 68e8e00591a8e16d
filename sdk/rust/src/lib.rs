//! Write plugins for Molt in Rust.
//!
//! A plugin is one type and one line that exports it:
//!
//! ```
//! use molt_plugin::reward::{Reward, Sample, Verdict};
//!
//! struct Length;
//!
//! impl Reward for Length {
//!     fn score(sample: Sample) -> Verdict {
//!         Verdict::reward(1.0 / (1.0 + sample.completion.len() as f64))
//!     }
//! }
//!
//! molt_plugin::export_reward!(Length);
//! ```
//!
//! Built for `wasm32-wasip2` that crate is a component which Molt loads by name. Built natively the
//! export line is nothing, so the plugin's unit tests run like any other.

mod bindings;
pub mod code;
pub mod environment;
pub mod estimator;
mod export;
pub mod interpreter;
pub mod loss;
pub mod model;
pub mod parameter;
pub mod reward;
pub mod types;

/// What the export macros expand to; not for use by hand.
#[doc(hidden)]
pub mod internal {
    pub use crate::bindings::{environment, estimator, group_reward, interpreter, loss, reward};
}
