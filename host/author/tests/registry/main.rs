//! `push`, `pull` and `add` against a real registry server, which also serves what is forged or damaged.
#![allow(clippy::unwrap_used, reason = "tests")]

mod add;
mod forged;
mod home;
mod hostile;
mod server;
mod share;
mod terminal;
