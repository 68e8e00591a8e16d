//! `molt plugin pull`.

use crate::error::AuthorError;

/// Download a plugin from a registry
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> Result<u8, AuthorError> {
    Err(AuthorError::user("`molt plugin pull` is not there yet", "copy the .wasm file by hand"))
}
