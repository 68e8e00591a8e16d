//! Whole runs on a small random model, with real plugins, tokenizer and chat template.
#![allow(clippy::unwrap_used)] // a failed set-up should stop the test where it is

mod beside;
mod credit;
mod experts;
mod keys;
mod learning;
mod losses;
mod parts;
mod scripted;
mod shaping;
mod turns;
