//! An interpreter that runs code for an environment or a reward, as the run grants it.
//!
//! A plugin that opens a [`Session`] imports `molt:plugin/code`, and is refused by a run that does not grant
//! it. What the code prints, evaluates to and raises comes back as an [`Output`]; code that the host had to
//! stop comes back as [`Stopped`], and the next [`Session::run`] begins anew.

pub use crate::bindings::code::{Output, Session, Stopped};

/// A session without state.
impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}
