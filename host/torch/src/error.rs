//! What can go wrong in libtorch.

/// A failure of libtorch outside of what `tch` reports.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    #[error("the gradient could not be computed: {0}")]
    Gradient(String),

    #[error("attention could not be computed: {0}")]
    Attention(String),

    #[error("the optimiser's step failed: {0}")]
    Step(String),

    #[error("no connection to the ranks' store at {address}: {reason}")]
    Store { address: String, reason: String },

    #[error("{collective} of group `{group}` failed on rank {rank} of {size}: {reason}")]
    Collective { collective: String, group: String, rank: usize, size: usize, reason: String },
}
