//! What Molt needs of libtorch and `tch` lacks: vector–Jacobian products, collectives, attention of packed sequences and a fused
//! AdamW. The one crate with unsafe code.

mod adamw;
mod attention;
mod differentiable;
mod error;
mod ffi;
mod group;
mod progress;
mod rows;
mod store;
mod vjp;

pub use adamw::{AdamW, Moments};
pub use attention::{Span, packed_attention};
pub use error::TorchError;
pub use group::{Group, Pending, Reduce, Traffic};
pub use progress::Progress;
pub use rows::{extent, rows};
pub use store::Store;
pub use vjp::vjp;
