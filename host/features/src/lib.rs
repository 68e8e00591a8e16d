//! No code: this crate's manifest settles the features of shared dependencies.
