//! What goes wrong between here and a registry.

use super::{PLUGIN_MIB, Reference};
use crate::error::AuthorError;
use molt_sandbox::LoadError;
use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use std::path::PathBuf;
use thiserror::Error;

/// Nothing was installed, and no plugin file was written.
#[derive(Debug, Error)]
pub(crate) enum RegistryError {
    #[error("`{text}` is not a reference to a registry: {why}")]
    Reference { text: String, why: String },

    #[error("the password cannot be read from standard input")]
    Password(#[source] std::io::Error),

    #[error("{} cannot be read", .path.display())]
    Credentials { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },

    #[error("{host} cannot be reached")]
    Unreachable { host: String, source: OciDistributionError },

    #[error("{host} refuses this account, or wants one")]
    Unauthorized { host: String },

    #[error("{reference} is not there")]
    NotFound { reference: String },

    #[error("{reference} is not a WebAssembly component: {found}")]
    NotComponent { reference: String, found: String },

    #[error("the {what} of {reference} is damaged or forged: expected {expected}, received {found}")]
    Tampered { what: &'static str, reference: String, expected: String, found: String },

    #[error("{reference} has {bytes} bytes, and a plugin has {PLUGIN_MIB} MiB at most")]
    TooLarge { reference: String, bytes: u64 },

    #[error("{reference} sends more than the {bytes} bytes that its manifest states")]
    TooLong { reference: String, bytes: u64 },

    #[error("{reference}: the connection ended after {received} of {bytes} bytes")]
    Interrupted { reference: String, received: u64, bytes: u64, source: Option<std::io::Error> },

    #[error("{host} sends a {what} of more than {most} bytes")]
    Endless { what: &'static str, host: String, most: usize },

    #[error("{host} did not send its {what}")]
    Broken { what: &'static str, host: String, source: std::io::Error },

    #[error("{host} answers with status {status}")]
    Status { host: String, status: u16 },

    #[error("{reference} holds no plugin")]
    NotPlugin { reference: String, source: LoadError },

    #[error("{} cannot be written", .path.display())]
    Unwritable { path: PathBuf, source: std::io::Error },

    #[error("{host} answers what cannot be understood")]
    Registry { host: String, source: OciDistributionError },
}

impl RegistryError {
    /// What an error of the client means for who asked about `reference`.
    pub(super) fn of(reference: &Reference, error: OciDistributionError) -> Self {
        use OciDistributionError as E;
        let host = || reference.host().to_owned();
        let unauthorized = || Self::Unauthorized { host: host() };
        let not_found = || Self::NotFound { reference: reference.to_string() };
        match error {
            E::RequestError(ref inner)
                if inner.status().is_some_and(|status| status == 401 || status == 403) =>
            {
                unauthorized()
            }
            E::RequestError(ref inner) if inner.is_connect() || inner.is_timeout() || inner.is_request() => {
                Self::Unreachable { host: host(), source: error }
            }
            E::UnauthorizedError { .. }
            | E::AuthenticationFailure(_)
            | E::ServerError { code: 401 | 403, .. } => unauthorized(),
            E::ImageManifestNotFoundError(_) | E::ServerError { code: 404, .. } => not_found(),
            E::RegistryError { ref envelope, .. } => match envelope.errors.first().map(|first| &first.code) {
                Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => unauthorized(),
                Some(
                    OciErrorCode::ManifestUnknown
                    | OciErrorCode::NameUnknown
                    | OciErrorCode::NotFound
                    | OciErrorCode::BlobUnknown
                    | OciErrorCode::ManifestBlobUnknown,
                ) => not_found(),
                _ => Self::Registry { host: host(), source: error },
            },
            E::DigestError(DigestError::VerificationError { expected, actual }) => {
                Self::Tampered { what: "manifest", reference: reference.to_string(), expected, found: actual }
            }
            source => Self::Registry { host: host(), source },
        }
    }

    /// For people: what could not be done, why, and what to do.
    pub(crate) fn told(self, what: String) -> AuthorError {
        let help = match &self {
            Self::Reference { .. } => "such as registry.example.org/lab/math:0.1.0".into(),
            Self::Password(_) => "give it by a pipe: --password-stdin < FILE".into(),
            Self::Credentials { .. } => "log in again, or give --username and --password-stdin".into(),
            Self::Unreachable { .. } => {
                "check the host and the network; a registry without TLS needs --insecure".into()
            }
            Self::Unauthorized { host } => format!(
                "give --username and --password-stdin, or log in to {host} so that config.json holds the \
                 account (credential helpers are not asked)"
            ),
            Self::NotFound { .. } => "check the repository and the tag".into(),
            Self::NotComponent { .. } => {
                "its manifest must have one layer application/wasm, as `molt plugin push` and `wkg` make it"
                    .into()
            }
            Self::Tampered { .. } | Self::TooLong { .. } | Self::Endless { .. } => {
                "do not use it; tell whoever keeps the registry, or pull another version".into()
            }
            Self::TooLarge { .. } => {
                "its author can build it without debug information, or put less data into it".into()
            }
            Self::Interrupted { .. } | Self::Broken { .. } => {
                "run the same command again; nothing was kept".into()
            }
            Self::NotPlugin { .. } => "`molt plugin inspect` says what a file is".into(),
            Self::Unwritable { .. } => "free space there, or choose another place".into(),
            Self::Registry { .. } | Self::Status { .. } => "is it an OCI registry?".to_owned(),
        };
        AuthorError::user(what, help).because(&self)
    }
}
