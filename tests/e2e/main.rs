//! End-to-end tests of the `molt` binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop where it stands")]

mod bad_input;
mod beside;
mod composition;
mod crash;
mod languages;
mod plugins;
mod ranks;
mod resume;
mod runs;
mod settings;
