//! Rollouts: prompts in, scored token-exact trajectories out, gathered into training batches.

pub mod batches;
mod episode;
pub mod error;
pub mod evaluate;
pub mod feed;
pub mod filter;
pub mod jsonl;
mod policy;
mod pool;
pub mod prompts;
pub mod readable;
mod score;
mod tool_calls;

pub use batches::{Batch, Batches, Plan, Position};
pub use episode::{Driver, TurnSettings};
pub use error::{RolloutError, counts, too_long};
pub use evaluate::{EvalReport, EvalRow, Measure, Scores, evaluate, metrics};
pub use feed::Buckets;
pub use filter::{Census, GroupFilter};
pub use jsonl::DataError;
pub use policy::PolicyModel;
pub use prompts::{Prompts, source};
pub use score::WeightedReward;
