//! Rollouts with a scripted model and real plugins, tokenizer and chat template.
#![allow(clippy::unwrap_used)] // a failed set-up should stop the test where it is

mod batches;
mod compose;
mod episode;
mod evaluate;
mod filter;
mod judge;
mod reasons;
mod scripted;
