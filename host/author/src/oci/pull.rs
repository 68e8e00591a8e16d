//! From a registry into a file, verified on the way.

use super::fetch::Fetch;
use super::{Reference, Registry, RegistryError, artifact, bar, digest_text, partial};
use molt_sandbox::{Info, inspect};
use oci_client::manifest::OciDescriptor;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

/// A plugin that has arrived whole and is what its manifest says.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) info: Info,
    /// The digest of the manifest, which `@sha256:…` in a reference means.
    pub(crate) manifest: String,
    /// Removed when dropped.
    pub(crate) file: NamedTempFile,
}

/// Pulls the plugin at `reference` into a temporary file in `folder`.
///
/// # Errors
/// See [`RegistryError`]; no file is left.
pub(crate) async fn pull(
    registry: &Registry,
    reference: &Reference,
    folder: &Path,
) -> Result<Pulled, RegistryError> {
    let mut fetch = Fetch::new(registry, reference);
    let (bytes, manifest) = fetch.manifest().await?;
    let layer = artifact::layer(&bytes, reference)?;
    let file = download(&mut fetch, reference, &layer, folder).await?;
    let not_plugin = |source| RegistryError::NotPlugin { reference: reference.to_string(), source };
    let info = inspect(file.path()).map_err(not_plugin)?;
    Ok(Pulled { info: Info { name: reference.name().to_owned(), ..info }, manifest, file })
}

/// Streams the layer into a file; it has the size and the digest of the descriptor, or it is an error.
async fn download(
    fetch: &mut Fetch<'_>,
    reference: &Reference,
    layer: &OciDescriptor,
    folder: &Path,
) -> Result<NamedTempFile, RegistryError> {
    let unwritable = |source| RegistryError::Unwritable { path: folder.to_owned(), source };
    let bytes = u64::try_from(layer.size).unwrap_or(0);
    let mut blocks = fetch.blob(&layer.digest).await?;
    let mut file = partial(reference.name(), folder).map_err(unwritable)?;
    let bar = bar(bytes, format!("pulling {}", reference.name()));
    let (mut hash, mut received) = (Sha256::new(), 0);
    while received < bytes {
        let interrupted =
            |source| RegistryError::Interrupted { reference: reference.to_string(), received, bytes, source };
        let block = blocks.next().await.map_err(|error| interrupted(Some(error)))?;
        let block = block.ok_or_else(|| interrupted(None))?;
        received += block.len() as u64;
        hash.update(&block);
        file.write_all(&block).map_err(unwritable)?;
        bar.set_position(received.min(bytes));
    }
    bar.finish_and_clear();
    if received > bytes {
        return Err(RegistryError::TooLong { reference: reference.to_string(), bytes });
    }
    let found = digest_text(&hash.finalize());
    if found != layer.digest {
        return Err(RegistryError::Tampered {
            what: "component",
            reference: reference.to_string(),
            expected: layer.digest.clone(),
            found,
        });
    }
    file.as_file().sync_all().map_err(unwritable)?;
    Ok(file)
}
