//! The pure part of Molt: what a token, a trajectory and a batch are, and every rule that needs no I/O.
//!
//! This crate knows no file, no clock, no thread, no tensor and no plugin runtime: values in, values out.

pub mod chat;
pub mod ids;
pub mod ledger;
pub mod majority;
pub mod microbatch;
pub mod outcome;
pub mod panic;
pub mod passk;
pub mod rank_env;
pub mod sampling;
pub mod schedule;
pub mod seed;
pub mod settings;
pub mod trajectory;
pub mod whiten;
pub mod window;
