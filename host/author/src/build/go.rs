//! go.

use crate::error::AuthorError;
use crate::project::Project;
use std::path::Path;

pub(super) fn build(_: &Project, _: &Path) -> Result<(), AuthorError> {
    Err(AuthorError::user("go cannot be built yet", "use Rust"))
}
