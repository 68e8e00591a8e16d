//! The trainer: from rollouts, or from conversations, to new weights.

pub mod advantage;
pub mod beside;
pub mod checkpoint;
pub mod conversations;
mod disk;
pub mod error;
pub mod freeze;
pub mod given;
mod heartbeat;
pub mod held_out;
mod kl;
pub mod loss;
mod mesh;
pub mod optim;
mod populations;
pub mod ranks;
mod replay;
pub mod report;
pub mod rl;
mod save;
pub mod sft;
pub mod shape;
mod shards;
pub mod step;

pub use error::TrainError;
pub use save::End;
