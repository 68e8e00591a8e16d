//! Why the command ends without success: the same errors and exit codes as those of the author's tools.

pub(crate) use molt_author::{AuthorError as Stop, OrAuthor as OrStop, USER};

/// Ctrl-C, as shells count it.
pub(crate) const INTERRUPTED: u8 = 130;
