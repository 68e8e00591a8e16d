//! Rollouts: prompts in, scored token-exact trajectories out, gathered into training batches.

pub mod batches;
mod episode;
pub mod error;
pub mod evaluate;
pub mod jsonl;
mod pool;
pub mod prompts;
pub mod readable;
mod tool_calls;

pub use batches::{Batch, Batches, Plan};
pub use episode::{Driver, TurnSettings};
pub use error::RolloutError;
pub use evaluate::{EvalReport, EvalRow, evaluate};
pub use jsonl::DataError;
pub use prompts::Prompts;
