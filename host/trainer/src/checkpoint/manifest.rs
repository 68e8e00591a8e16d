//! What a checkpoint says of itself: which run it is of, which models, and the digests of its files.

use super::MANIFEST;
use crate::error::TrainError;
use crate::mesh::Mesh;
use crate::step::Learner;
use crate::step::part::digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// Raised when files are laid out, or hold what they hold, in another way.
pub(super) const FORMAT: u32 = 6;

/// What a run is of, which one that goes on must be of too.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The command: `train` or `sft`.
    pub command: String,
    /// The digest of what it is trained on.
    pub data: String,
    /// The fingerprint of the weights, if some of them are not trained, and so in no checkpoint.
    pub frozen: Option<String>,
    /// What plugins it has.
    pub components: Value,
    /// Its resolved settings, in TOML.
    pub settings: String,
}

impl Identity {
    /// Of a run over `data`, whose contents are what counts.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(
        command: &str,
        data: &[&Path],
        components: Value,
        settings: String,
    ) -> Result<Self, TrainError> {
        Ok(Self { command: command.to_owned(), data: digest_of(data)?, frozen: None, components, settings })
    }

    /// Of a run that trains a part of weights with this fingerprint.
    #[must_use]
    pub fn over(self, fingerprint: &str) -> Self {
        Self { frozen: Some(hexadecimal(&Sha256::digest(fingerprint))), ..self }
    }
}

/// The digest of what these files hold.
///
/// # Errors
/// If one cannot be read.
pub fn digest_of(files: &[&Path]) -> Result<String, TrainError> {
    let of = |path: &&Path| {
        let digest =
            digest(path).map_err(|source| TrainError::Unreadable { path: path.to_path_buf(), source })?;
        Ok(hexadecimal(&digest))
    };
    Ok(files.iter().map(of).collect::<Result<Vec<_>, TrainError>>()?.join(" "))
}

/// `checkpoint.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) step: u64,
    #[serde(flatten)]
    pub(super) mesh: Mesh,
    #[serde(flatten)]
    pub(super) policy: Trained,
    pub(super) critic: Option<Trained>,
    /// SHA-256 of every other file, in hexadecimal.
    pub(super) files: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(super) of: Identity,
    /// SHA-256 of this file, with zeros in the place of these digits.
    pub(super) digest: String,
}

impl Manifest {
    /// As a file. Whatever its digest is before, it is right in there.
    pub(super) fn seal(mut self) -> serde_json::Result<Vec<u8>> {
        self.digest = UNKNOWN.to_owned();
        let mut text = serde_json::to_string_pretty(&self)?;
        let digest = hexadecimal(&Sha256::digest(&text));
        // The last field; what looks like it before would be a setting.
        if let Some(at) = text.rfind(UNKNOWN) {
            text.replace_range(at..at + UNKNOWN.len(), &digest);
        }
        Ok(text.into_bytes())
    }

    /// Reads the file, or says why it cannot be used.
    pub(super) fn open(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |error: serde_json::Error| format!("{MANIFEST} is damaged: {error}");
        let Format { format } = serde_json::from_slice(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!("it is of format {format}, and this version of molt reads {FORMAT}"));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(damaged)?;
        let mut as_written = String::from_utf8_lossy(text).into_owned();
        let at = as_written.rfind(&manifest.digest).filter(|_| manifest.digest.len() == UNKNOWN.len());
        if let Some(at) = at {
            as_written.replace_range(at..at + UNKNOWN.len(), UNKNOWN);
        }
        if hexadecimal(&Sha256::digest(&as_written)) != manifest.digest {
            return Err(format!("{MANIFEST} is damaged: it is not what was written"));
        }
        Ok(manifest)
    }
}

/// The digits of a digest before it is known.
pub(super) const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A model of which there are parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Trained {
    /// Updates of the optimiser.
    pub(super) updates: u64,
    /// Shape of every trained parameter.
    pub(super) parameters: BTreeMap<String, Vec<i64>>,
}

impl Trained {
    pub(super) fn new(learner: &Learner) -> Self {
        Self { updates: learner.version().0, parameters: learner.shapes() }
    }

    /// Whether it is of the model that the learner trains, or why not.
    pub(super) fn is_of(&self, learner: &Learner) -> Result<(), String> {
        let (had, has) = (&self.parameters, learner.shapes());
        let other = had.iter().chain(&has).find(|(name, _)| had.get(*name) != has.get(*name));
        let Some((name, shape)) = other else { return Ok(()) };
        Err(match (had.get(name), has.get(name)) {
            (Some(had), Some(has)) => format!("of another model: {name} was {had:?} and is {has:?}"),
            (Some(_), None) => {
                format!("of another model, or another part of it is trained: {name} {shape:?} is not")
            }
            _ => format!("of another model, or another part of it was trained: {name} {shape:?} was not"),
        })
    }
}

pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
