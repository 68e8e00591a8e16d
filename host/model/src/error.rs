//! Why a model was not loaded, changed or written.

use std::path::PathBuf;
use tch::TchError;

/// Everything that can be wrong with a model directory or with parameters given by name.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// The architecture is not one that the decoder computes, or the file is no configuration at all.
    #[error("{}: {reason}", path.display())]
    Config { path: PathBuf, reason: String },
    /// A weights file is truncated, damaged or contradicts itself.
    #[error("{} is damaged: {reason}; fetch it again", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{}: no model.safetensors and no model.safetensors.index.json; weights are read in that format only", path.display())]
    NoWeights { path: PathBuf },
    #[error("parameters are missing: {}", listed(.0))]
    Missing(Vec<String>),
    #[error("parameters that the model does not have: {}", listed(.0))]
    Unexpected(Vec<String>),
    #[error("parameter {name} has the shape {found:?}, and config.json makes it {expected:?}")]
    Shape { name: String, expected: Vec<i64>, found: Vec<i64> },
    #[error("parameter {name} holds {found} values; only F64, F32, F16 and BF16 are read")]
    Kind { name: String, found: String },
    #[error("{0}")]
    Adapter(String),
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// The first few names, and how many there are beyond them.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}
