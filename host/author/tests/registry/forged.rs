//! A registry that is damaged, or whose keeper is no friend.

use crate::home::{Home, after, plugin};
use crate::server::{Server, digest};
use std::fs;

/// A registry with one plugin, lab/a:1; its component's and its manifest's digest.
fn pushed() -> (Server, Home, String, String) {
    let (server, home) = (Server::start(), Home::new());
    home.write("a.wasm", &plugin(Some("0.1.0"), "a"));
    let text = home.molt(&["push", "a.wasm", &server.reference("lab/a:1")]).good();
    fs::remove_file(home.path("a.wasm")).unwrap();
    let manifest = after(&text, "reference").split_once('@').unwrap().1.to_owned();
    (server, home, after(&text, "plugin"), manifest)
}

/// A manifest as `push` makes it, for a layer of any digest and size.
pub(crate) fn manifest(config_type: &str, layers: &[(&str, &str, u64)]) -> String {
    let layer = |(kind, digest, size): &(&str, &str, u64)| {
        format!(r#"{{"mediaType":"{kind}","digest":"{digest}","size":{size}}}"#)
    };
    let layers: Vec<String> = layers.iter().map(layer).collect();
    format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"{config_type}","digest":"{}","size":2}},"layers":[{}]}}"#,
        digest(b"{}"),
        layers.join(",")
    )
}

pub(crate) const CONFIG: &str = "application/vnd.wasm.config.v0+json";
pub(crate) const WASM: &str = "application/wasm";

#[test]
fn a_component_with_one_flipped_bit_is_refused_with_both_digests() {
    let (server, home, component, by_digest) = pushed();
    let path = server.blob(&component);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    for reference in ["lab/a:1".to_owned(), format!("lab/a@{by_digest}")] {
        let pulled = home.molt(&["pull", &server.reference(&reference)]);
        pulled.refused(&["the component of", "damaged or forged", &component, &digest(&bytes)]);
    }
    home.molt(&["add", &server.reference("lab/a:1")]).refused(&["damaged or forged", &component]);
    assert_eq!(home.files("."), ["data"], "no part of it is kept");
    assert_eq!(home.files("data/molt/plugins"), [""; 0]);
}

#[test]
fn a_component_that_was_replaced_by_another_plugin_is_refused() {
    let (server, home, component, _) = pushed();
    let path = server.blob(&component);
    let other = plugin(Some("0.1.0"), "b");
    assert_eq!(other.len(), fs::read(&path).unwrap().len());
    fs::write(&path, &other).unwrap();
    home.molt(&["pull", &server.reference("lab/a:1")]).refused(&[&component, &digest(&other)]);
}

#[test]
fn a_manifest_that_was_changed_is_refused_with_both_digests() {
    let (server, home, _, by_digest) = pushed();
    let path = server.blob(&by_digest);
    let other = String::from_utf8(fs::read(&path).unwrap()).unwrap().replace("0.1.0", "9.9.9");
    fs::write(&path, &other).unwrap();
    for reference in ["lab/a:1".to_owned(), format!("lab/a@{by_digest}")] {
        let pulled = home.molt(&["pull", &server.reference(&reference)]);
        pulled.refused(&["the manifest of", "damaged or forged", &by_digest, &digest(other.as_bytes())]);
    }
    assert_eq!(home.files("."), [""; 0]);
}

#[test]
fn a_component_that_ends_early_is_refused_and_leaves_nothing() {
    let (server, home, component, _) = pushed();
    let path = server.blob(&component);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    home.molt(&["pull", &server.reference("lab/a:1")])
        .refused(&[&format!("of {} bytes", bytes.len()), "again"]);
    fs::remove_file(&path).unwrap();
    home.molt(&["pull", &server.reference("lab/a:1")]).refused(&["is not there"]);
    assert_eq!(home.files("."), [""; 0]);
}

#[test]
fn other_artifacts_are_refused_by_what_they_are() {
    let (server, home) = (Server::start(), Home::new());
    server.plant_blob("lab/a", b"{}");
    let good = server.plant_blob("lab/a", &plugin(None, "a"));
    let size = plugin(None, "a").len() as u64;
    let image = "application/vnd.oci.image.config.v1+json";
    let index = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;
    for (manifest, why) in [
        (manifest(image, &[(WASM, &good, size)]), "its configuration is application/vnd.oci.image.config"),
        (manifest(CONFIG, &[("application/vnd.oci.image.layer.v1.tar", &good, size)]), "its layer is"),
        (manifest(CONFIG, &[]), "it has 0 layers"),
        (manifest(CONFIG, &[(WASM, &good, size), (WASM, &good, size)]), "it has 2 layers"),
        (index.to_owned(), "its manifest is application/vnd.oci.image.index"),
    ] {
        server.plant_manifest("lab/a", "1", &manifest);
        home.molt(&["pull", &server.reference("lab/a:1")]).refused(&["is not a WebAssembly component", why]);
    }
    server.plant_manifest("lab/a", "1", &manifest(CONFIG, &[(WASM, &good, size)]));
    home.molt(&["pull", &server.reference("lab/a:1")]).good();
}

#[test]
fn a_wasm_layer_that_is_no_plugin_is_refused() {
    let (server, home) = (Server::start(), Home::new());
    server.plant_blob("lab/a", b"{}");
    for (bytes, why) in [
        (&b"hello"[..], "not a WebAssembly file"),
        (b"\0asm\x01\0\0\0", "core WebAssembly module"),
        (b"\0asm\x0d\0\x01\0", "not a Molt plugin"),
    ] {
        let layer = server.plant_blob("lab/a", bytes);
        server.plant_manifest("lab/a", "1", &manifest(CONFIG, &[(WASM, &layer, bytes.len() as u64)]));
        home.molt(&["pull", &server.reference("lab/a:1")]).refused(&["holds no plugin", why]);
        home.molt(&["add", &server.reference("lab/a:1")]).refused(&["holds no plugin", why]);
    }
    assert_eq!(home.files("data/molt/plugins"), [""; 0]);
}

#[test]
fn sizes_are_bounded_and_a_false_one_is_found() {
    let (server, home) = (Server::start(), Home::new());
    server.plant_blob("lab/a", b"{}");
    let bytes = plugin(None, "a");
    let (layer, size) = (server.plant_blob("lab/a", &bytes), bytes.len() as u64);
    let pull = |size: u64| {
        server.plant_manifest("lab/a", "1", &manifest(CONFIG, &[(WASM, &layer, size)]));
        home.molt(&["pull", &server.reference("lab/a:1")])
    };
    pull((64 << 20) + 1).refused(&["67108865 bytes", "64 MiB at most"]);
    // More than is there: the connection ends early. Less: what comes is not what was promised.
    pull(64 << 20).refused(&[&format!("after {size} of 67108864 bytes")]);
    pull(size - 1).refused(&[&format!("more than the {} bytes", size - 1)]);
    pull(0).refused(&["damaged or forged"]);
    assert_eq!(home.files("."), [""; 0]);
    pull(size).good();
}
