//! The artifact format that registries and tools of the WebAssembly ecosystem share.

use super::{PLUGIN_MIB, Reference, RegistryError, sha256};
use crate::error::AuthorError;
use molt_sandbox::Info;
use oci_client::manifest::{OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciImageManifest};
use serde::Serialize;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use wit_component::DecodedWasm;

const CONFIG: &str = "application/vnd.wasm.config.v0+json";
const LAYER: &str = "application/wasm";

/// The configuration blob.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    created: String,
    architecture: &'static str,
    os: &'static str,
    layer_digests: [&'a str; 1],
    component: Component,
}

/// What the component asks for and gives.
#[derive(Debug, Serialize)]
struct Component {
    exports: Vec<String>,
    imports: Vec<String>,
}

/// What is uploaded for one plugin besides its file.
#[derive(Debug)]
pub(crate) struct Artifact {
    pub(super) config: Vec<u8>,
    pub(super) config_digest: String,
    pub(super) manifest: Vec<u8>,
    /// What the registry files the manifest under.
    pub(super) manifest_digest: String,
}

impl Artifact {
    /// Describes a plugin.
    ///
    /// # Errors
    /// A component whose interfaces cannot be read.
    pub(crate) fn of(info: &Info, bytes: &[u8]) -> Result<Self, AuthorError> {
        let unreadable = |why: String| {
            AuthorError::user(format!("{} cannot be described: {why}", info.path.display()), "build it again")
        };
        let config = Config {
            created: created().map_err(|error| unreadable(error.to_string()))?,
            architecture: "wasm",
            os: "wasip2",
            layer_digests: [&info.digest],
            component: component(bytes).map_err(&unreadable)?,
        };
        let config = serde_json::to_vec(&config).map_err(|error| unreadable(error.to_string()))?;
        let config_digest = sha256(&config);
        let manifest = OciImageManifest {
            media_type: Some(OCI_IMAGE_MEDIA_TYPE.into()),
            config: descriptor(CONFIG, &config_digest, config.len()),
            layers: vec![descriptor(LAYER, &info.digest, bytes.len())],
            annotations: Some(annotations(info)),
            ..OciImageManifest::default()
        };
        let manifest = serde_json::to_vec(&manifest).map_err(|error| unreadable(error.to_string()))?;
        let manifest_digest = sha256(&manifest);
        Ok(Self { config, config_digest, manifest, manifest_digest })
    }
}

fn created() -> Result<String, time::error::Format> {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339)
}

fn descriptor(media_type: &str, digest: &str, size: usize) -> OciDescriptor {
    OciDescriptor {
        media_type: media_type.into(),
        digest: digest.into(),
        size: i64::try_from(size).unwrap_or(i64::MAX),
        ..OciDescriptor::default()
    }
}

/// The names of all that the component imports and exports.
fn component(bytes: &[u8]) -> Result<Component, String> {
    let decoded = wit_component::decode(bytes).map_err(|error| format!("{error:#}"))?;
    let DecodedWasm::Component(resolve, world) = decoded else {
        return Err("it holds interfaces and no code".into());
    };
    let world = resolve.worlds.get(world).ok_or("it has no world")?;
    Ok(Component {
        exports: world.exports.keys().map(|key| resolve.name_world_key(key)).collect(),
        imports: world.imports.keys().map(|key| resolve.name_world_key(key)).collect(),
    })
}

/// For people who browse a registry.
fn annotations(info: &Info) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("org.opencontainers.image.title".to_owned(), info.name.clone())]);
    all.extend(info.version.clone().map(|version| ("org.opencontainers.image.version".to_owned(), version)));
    let description = info.description.clone();
    all.extend(description.map(|text| ("org.opencontainers.image.description".to_owned(), text)));
    all
}

/// The layer of a manifest that is the component.
///
/// # Errors
/// Another type of artifact, or one that is too large.
pub(super) fn layer(manifest: &[u8], reference: &Reference) -> Result<OciDescriptor, RegistryError> {
    let other = |found: String| RegistryError::NotComponent { reference: reference.to_string(), found };
    let value: serde_json::Value = serde_json::from_slice(manifest)
        .map_err(|error| other(format!("its manifest is no JSON ({error})")))?;
    let media_type = value.get("mediaType").and_then(serde_json::Value::as_str);
    if media_type.is_some_and(|found| found != OCI_IMAGE_MEDIA_TYPE) {
        return Err(other(format!("its manifest is {}", media_type.unwrap_or_default())));
    }
    let manifest: OciImageManifest = serde_json::from_value(value)
        .map_err(|error| other(format!("its manifest is not that of an image ({error})")))?;
    if manifest.config.media_type != CONFIG {
        return Err(other(format!("its configuration is {}", manifest.config.media_type)));
    }
    let [layer] = manifest.layers.as_slice() else {
        return Err(other(format!("it has {} layers", manifest.layers.len())));
    };
    if layer.media_type != LAYER {
        return Err(other(format!("its layer is {}", layer.media_type)));
    }
    // It becomes a part of an address.
    let hex = layer.digest.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() != 64 || !hex.bytes().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
        return Err(other(format!("its layer has the digest {}", layer.digest)));
    }
    let bytes =
        u64::try_from(layer.size).map_err(|_| other(format!("its layer has {} bytes", layer.size)))?;
    if bytes > PLUGIN_MIB << 20 {
        return Err(RegistryError::TooLarge { reference: reference.to_string(), bytes });
    }
    // The address of another server in the manifest is not followed: what is wanted lies in this registry.
    Ok(OciDescriptor { urls: None, ..layer.clone() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use serde_json::{Value, json};

    fn manifest(size: Value) -> Value {
        let descriptor = |media_type: &str, size: Value| json!({"mediaType": media_type, "digest": format!("sha256:{}", "a".repeat(64)), "size": size});
        json!({"schemaVersion": 2, "config": descriptor(CONFIG, json!(2)), "layers": [descriptor(LAYER, size)]})
    }

    #[test]
    fn a_manifest_that_no_registry_checked_is_not_trusted() {
        let reference = Reference::parse("registry.example.org/lab/math:0.1.0").unwrap();
        let read = |manifest: &Value| layer(manifest.to_string().as_bytes(), &reference);
        assert_eq!(read(&manifest(json!(8))).unwrap().size, 8);
        for size in [json!(-1), json!(u64::MAX), json!("8"), json!(null), json!(1.5)] {
            assert!(matches!(read(&manifest(size)), Err(RegistryError::NotComponent { .. })));
        }
        let too_large = read(&manifest(json!(i64::MAX)));
        assert!(matches!(too_large, Err(RegistryError::TooLarge { .. })));
        let mut other = manifest(json!(8));
        for digest in ["md5:0".into(), format!("sha256:{}", "/../".repeat(16)), "sha256:abc".into()] {
            other["layers"][0]["digest"] = json!(digest);
            assert!(matches!(read(&other), Err(RegistryError::NotComponent { .. })));
        }
        for bytes in [&b""[..], b"{", b"[]", b"\xff", b"null"] {
            assert!(matches!(layer(bytes, &reference), Err(RegistryError::NotComponent { .. })));
        }
        other["layers"] = json!([{"mediaType": LAYER, "digest": format!("sha256:{}", "b".repeat(64)), "size": 1,
            "urls": ["https://elsewhere.example.org/evil.wasm"]}]);
        assert_eq!(read(&other).unwrap().urls, None, "no other server is asked");
    }
}
