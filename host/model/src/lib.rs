//! The model: a transformer on libtorch, and the text that goes in and out of it.

mod adapter;
mod block;
mod cache;
pub mod chat;
mod checkpoint;
mod config;
mod decoder;
mod error;
mod experts;
mod guard;
mod network;
mod parallel;
mod python;
mod rope;
mod sequences;
mod template;
pub mod text_error;
pub mod tokenizer;
mod weights;

pub use adapter::Adapter;
pub use cache::KvCache;
pub use chat::Chat;
pub use checkpoint::{TensorFile, write_tensors};
pub use config::{Config, RopeScaling};
pub use decoder::{Decoder, save};
pub use error::ModelError;
pub use experts::{Experts, Routed};
pub use network::{Network, Unit};
pub use parallel::{Cut, Parallel};
pub use sequences::Sequences;
pub use text_error::TextError;
pub use tokenizer::Tokenizer;
pub use weights::Weights;
