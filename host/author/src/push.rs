//! `molt plugin push`.

use crate::error::AuthorError;

/// Upload a plugin to a registry
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> Result<u8, AuthorError> {
    Err(AuthorError::user("`molt plugin push` is not there yet", "copy the .wasm file by hand"))
}
