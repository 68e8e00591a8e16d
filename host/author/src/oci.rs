//! Plugins in OCI registries, in the artifact format of the WebAssembly ecosystem: one layer that is the
//! component, so that the layer's digest is the digest that Molt knows the plugin by.

mod artifact;
mod credentials;
mod error;
mod fetch;
mod pull;
mod push;
mod reference;

pub(crate) use artifact::Artifact;
pub(crate) use error::RegistryError;
pub(crate) use pull::pull;
pub(crate) use push::push;
pub(crate) use reference::Reference;

use crate::error::AuthorError;
use crate::open;
use indicatif::{ProgressBar, ProgressStyle};
use oci_client::Client;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Size of a plugin at most: what the sandbox reads.
pub(crate) const PLUGIN_MIB: u64 = 64;

/// How to speak to the registry
#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    /// Speak plain HTTP; a registry on this machine is spoken to so anyway
    #[arg(long)]
    insecure: bool,
    /// The account at the registry. Without it: what `docker login` left in config.json
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    username: Option<String>,
    /// Read the account's password from standard input
    #[arg(long, requires = "username")]
    password_stdin: bool,
}

/// A registry, ready to be asked.
pub(crate) struct Registry {
    /// For uploads: of an answer it reads whatever comes.
    client: Client,
    /// For everything that is read.
    http: reqwest::Client,
    scheme: &'static str,
    auth: RegistryAuth,
}

const USER_AGENT: &str = concat!("molt/", env!("CARGO_PKG_VERSION"));
const CONNECT: Duration = Duration::from_secs(20);

impl Registry {
    /// The registry that `reference` is in. Nothing is sent yet.
    pub(crate) fn of(reference: &Reference, access: &Access) -> Result<Self, RegistryError> {
        let auth = match &access.username {
            Some(name) => RegistryAuth::Basic(name.clone(), password()?),
            None => credentials::of(reference.host())?,
        };
        // Fails only if the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plain = access.insecure || reference.is_local();
        let config = ClientConfig {
            protocol: if plain { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(CONNECT),
            read_timeout: Some(Duration::from_secs(60)),
            platform_resolver: None,
            user_agent: USER_AGENT,
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| RegistryError::of(reference, error))?;
        let http = reqwest::Client::builder().connect_timeout(CONNECT).user_agent(USER_AGENT).build();
        let http = http.map_err(|error| RegistryError::of(reference, error.into()))?;
        Ok(Self { client, http, scheme: if plain { "http" } else { "https" }, auth })
    }
}

/// The password, without the end of its line.
fn password() -> Result<String, RegistryError> {
    let mut text = String::new();
    // No registry has longer ones; standard input may be anything.
    io::stdin().take(64 << 10).read_to_string(&mut text).map_err(RegistryError::Password)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Drives what is asked of a registry; `what` says what cannot be done if it fails.
pub(crate) fn drive<T>(
    what: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, RegistryError>>,
) -> Result<T, AuthorError> {
    open::runtime()?.block_on(work).map_err(|error| error.told(what()))
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    digest_text(&Sha256::digest(bytes))
}

fn digest_text(hash: &[u8]) -> String {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// A bar for what takes long, on a terminal.
fn bar(bytes: u64, label: String) -> ProgressBar {
    if bytes < 1 << 20 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(bytes).with_message(label).with_style(style)
}

/// A file for what is not whole yet. It is not called .wasm: a search for plugins never finds half a file.
pub(crate) fn partial(name: &str, folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(&format!(".{name}-")).suffix(".part").tempfile_in(folder)
}

/// Gives a finished file its name, in one step, with the permissions of any new file.
pub(crate) fn keep(file: NamedTempFile, path: &Path) -> io::Result<()> {
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}
