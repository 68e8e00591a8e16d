//! What a plugin's author uses: `molt plugin …` and `molt-plugin …`, which are the same commands.
//!
//! Everything runs in the sandbox that training uses, and nothing here needs libtorch. One module per command;
//! `build` has one per language.

mod add;
mod args;
mod batch;
mod bench;
mod bindings;
mod build;
mod built;
mod cases;
mod check;
mod embedded;
mod error;
mod failure;
mod inspect;
mod list;
mod new;
mod oci;
mod open;
mod present;
mod project;
mod pull;
mod push;
mod run;
mod test;

pub use args::{command, run};
pub use error::{AuthorError, FAILED, OrAuthor, USER, chain};
pub use open::sandbox;
pub use present::{print, short_digest, table};
pub use run::{Tried, tried};
