//! From a file into a registry.

use super::artifact::{self, Artifact};
use super::fetch::Fetch;
use super::{Reference, Registry, RegistryError, bar};
use molt_sandbox::Info;
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OCI_IMAGE_MEDIA_TYPE;

/// The size of one request of an upload.
const BLOCK: usize = 1 << 20;

/// What the registry holds now.
#[derive(Debug)]
pub(crate) struct Pushed {
    /// The digest of the manifest, which `@sha256:…` in a reference means.
    pub(crate) manifest: String,
    /// The tag already named this component: nothing was sent.
    pub(crate) present: bool,
}

/// Uploads a plugin's `bytes` under `reference`, which has a tag; the tag is moved if another component has it.
///
/// # Errors
/// See [`RegistryError`].
pub(crate) async fn push(
    registry: &Registry,
    reference: &Reference,
    (info, bytes, artifact): (&Info, Vec<u8>, Artifact),
) -> Result<Pushed, RegistryError> {
    let (client, image) = (&registry.client, reference.inner());
    let of = |error| RegistryError::of(reference, error);
    client.store_auth_if_needed(reference.host(), &registry.auth).await;
    if let Some(manifest) = tagged(registry, reference, &info.digest).await? {
        return Ok(Pushed { manifest, present: true });
    }
    if !client.blob_exists(image, &info.digest).await.map_err(of)? {
        let bar = bar(bytes.len() as u64, format!("pushing {}", info.name));
        let moving = bar.clone();
        let data = bytes::Bytes::from(bytes);
        let starts = (0..data.len()).step_by(BLOCK);
        let blocks = starts.map(move |start| {
            let block = data.slice(start..data.len().min(start + BLOCK));
            moving.inc(block.len() as u64);
            Ok(block)
        });
        let stream = futures_util::stream::iter(blocks);
        client.push_blob_stream(image, stream, &info.digest, None).await.map_err(of)?;
        bar.finish_and_clear();
    }
    client.push_blob(image, artifact.config, &artifact.config_digest).await.map_err(of)?;
    let media_type = OCI_IMAGE_MEDIA_TYPE
        .parse()
        .map_err(|_| of(OciDistributionError::UnsupportedMediaTypeError(OCI_IMAGE_MEDIA_TYPE.into())))?;
    client.push_manifest_raw(image, artifact.manifest, media_type).await.map_err(of)?;
    Ok(Pushed { manifest: artifact.manifest_digest, present: false })
}

/// The manifest's digest if the tag names this component already.
async fn tagged(
    registry: &Registry,
    reference: &Reference,
    digest: &str,
) -> Result<Option<String>, RegistryError> {
    match Fetch::new(registry, reference).manifest().await {
        Ok((manifest, found)) => {
            let same = artifact::layer(&manifest, reference).is_ok_and(|layer| layer.digest == digest);
            Ok(same.then_some(found))
        }
        // A registry may hide what is not there behind a refusal; of a real one, the upload is told too.
        Err(
            RegistryError::NotFound { .. }
            | RegistryError::Tampered { .. }
            | RegistryError::Unauthorized { .. },
        ) => Ok(None),
        Err(other) => Err(other),
    }
}
