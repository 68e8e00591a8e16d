//! `molt plugin add`.

use crate::error::AuthorError;

/// Install a plugin into the search path
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> Result<u8, AuthorError> {
    Err(AuthorError::user("`molt plugin add` is not there yet", "copy the .wasm file by hand"))
}
