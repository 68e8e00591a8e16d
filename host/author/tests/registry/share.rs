//! From one user to another.

use crate::home::{Home, after, plugin, shipped};
use crate::server::{ACCOUNT, Server, digest};
use serde_json::Value;
use std::fs;

#[test]
fn what_is_pushed_is_pulled_by_tag_and_by_digest_bit_for_bit() {
    let (server, author, user) = (Server::start(), Home::new(), Home::new());
    let bytes = shipped("grpo");
    author.write("grpo.wasm", &bytes);
    let reference = server.reference("lab/rl/grpo:0.1.0");
    let pushed = author.molt(&["push", "grpo.wasm", &reference]).good();
    assert_eq!(after(&pushed, "plugin"), digest(&bytes));
    let by_digest = after(&pushed, "reference");

    user.molt(&["pull", &reference]).good();
    assert_eq!(fs::read(user.path("grpo.wasm")).unwrap(), bytes);
    let pulled = user.molt(&["pull", &by_digest, "-o", "again.wasm"]).good();
    assert_eq!(fs::read(user.path("again.wasm")).unwrap(), bytes);
    assert_eq!(after(&pulled, "plugin"), digest(&bytes));
    assert_eq!(after(&pulled, "reference"), by_digest);
    assert_eq!(user.files("."), ["again.wasm", "grpo.wasm"], "nothing else is left");
}

#[test]
fn the_artifact_is_the_one_of_the_webassembly_ecosystem() {
    let (server, author) = (Server::start(), Home::new());
    let bytes = shipped("grpo");
    author.write("grpo.wasm", &bytes);
    let pushed = author.molt(&["push", "grpo.wasm", &server.reference("lab/grpo:1")]).good();
    let (_, manifest_digest) =
        after(&pushed, "reference").split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let json =
        |digest: &str| -> Value { serde_json::from_slice(&fs::read(server.blob(digest)).unwrap()).unwrap() };

    // Names and media types as the guidance for WebAssembly artifacts has them, which wkg and oci-wasm follow.
    let manifest = json(&manifest_digest);
    assert_eq!(manifest["schemaVersion"], 2);
    assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
    let layer = &manifest["layers"][0];
    assert_eq!(layer["mediaType"], "application/wasm");
    assert_eq!((&layer["digest"], &layer["size"]), (&digest(&bytes).into(), &bytes.len().into()));
    assert_eq!(manifest["annotations"]["org.opencontainers.image.title"], "grpo");
    assert_eq!(manifest["annotations"]["org.opencontainers.image.version"], "0.1.0");
    assert!(manifest["annotations"]["org.opencontainers.image.description"].is_string());

    let config = json(manifest["config"]["digest"].as_str().unwrap());
    assert_eq!((&config["architecture"], &config["os"]), (&"wasm".into(), &"wasip2".into()));
    assert_eq!(config["layerDigests"], serde_json::json!([digest(&bytes)]));
    let names = |key: &str| config["component"][key].as_array().unwrap().clone();
    assert!(names("exports").iter().any(|name| name.as_str().unwrap().starts_with("molt:plugin/estimator@")));
    assert!(
        names("imports").iter().any(|name| name.as_str().unwrap().starts_with("wasi:cli/stderr@")),
        "{config}"
    );
    let created = config["created"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.len() == "2026-11-29T12:00:00Z".len(), "{created}");
}

#[test]
fn a_tag_moves_to_another_component_and_the_old_one_stays_by_its_digest() {
    let (server, home) = (Server::start(), Home::new());
    let (old, new) = (plugin(Some("0.1.0"), "old"), plugin(Some("0.1.1"), "new"));
    home.write("old.wasm", &old);
    home.write("new.wasm", &new);
    let tag = server.reference("lab/a:latest");
    let first = home.molt(&["push", "old.wasm", &tag]).good();
    let again = home.molt(&["push", "old.wasm", &tag]).good();
    assert!(again.contains("was there already"), "{again}");
    assert_eq!(after(&again, "reference"), after(&first, "reference"), "the same file is the same artifact");
    home.molt(&["push", "new.wasm", &tag]).good();
    home.molt(&["pull", &tag, "-o", "1.wasm"]).good();
    home.molt(&["pull", &after(&first, "reference"), "-o", "2.wasm"]).good();
    assert_eq!(fs::read(home.path("1.wasm")).unwrap(), new);
    assert_eq!(fs::read(home.path("2.wasm")).unwrap(), old);
}

#[test]
fn a_large_plugin_goes_and_comes_in_blocks() {
    let (server, home) = (Server::start(), Home::new());
    let mut bytes = plugin(None, "large");
    // A custom section of 9 MiB: its number, its length in LEB128, the length of its name, no name.
    let length: u32 = 9 << 20;
    bytes.push(0);
    bytes.extend([0, 7, 14, 21].map(|shift| (length >> shift) as u8 | if shift < 21 { 0x80 } else { 0 }));
    bytes.push(0);
    bytes.extend((1..length).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8));
    home.write("large.wasm", &bytes);
    let tag = server.reference("lab/large:1");
    home.molt(&["push", "large.wasm", &tag]).good();
    home.molt(&["pull", &tag, "-o", "back.wasm"]).good();
    assert!(fs::read(home.path("back.wasm")).unwrap() == bytes);
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let (server, home) = (Server::start(), Home::new());
    home.write("a.wasm", &plugin(None, "theirs"));
    let tag = server.reference("lab/a:1");
    home.molt(&["push", "a.wasm", &tag]).good();
    home.molt(&["pull", &tag]).good();
    home.write("a.wasm", b"mine");
    home.molt(&["pull", &tag]).refused(&["a.wasm is there", "--force"]);
    assert_eq!(fs::read(home.path("a.wasm")).unwrap(), b"mine");
    home.molt(&["pull", &tag, "--force"]).good();
    assert_eq!(fs::read(home.path("a.wasm")).unwrap(), plugin(None, "theirs"));
}

#[test]
fn what_is_not_there_or_not_reachable_is_told() {
    let (server, home) = (Server::start(), Home::new());
    home.write("a.wasm", &plugin(None, "a"));
    home.molt(&["push", "a.wasm", &server.reference("lab/a:1")]).good();
    for rest in ["lab/a:2", "lab/b:1", &format!("lab/a@sha256:{}", "0".repeat(64))] {
        let reference = server.reference(rest);
        home.molt(&["pull", &reference]).refused(&[&format!("{reference} is not there")]);
    }
    let gone = server.reference("lab/a:1");
    let host = server.host().to_owned();
    drop(server);
    home.molt(&["pull", &gone]).refused(&[&format!("{host} cannot be reached"), "--insecure"]);
    home.molt(&["push", "a.wasm", &gone]).refused(&[&format!("{host} cannot be reached")]);
    home.molt(&["pull", "a:1"]).refused(&["no default registry"]);
    home.molt(&["push", "a.wasm", "localhost:1/a"]).refused(&["ends with a tag"]);
    home.molt(&["push", "a.wasm", &format!("localhost:1/a@sha256:{}", "0".repeat(64))]).refused(&["tag"]);
    assert_eq!(home.files("."), ["a.wasm"]);
}

#[test]
fn a_registry_that_asks_who_it_is_gets_the_account_from_the_command_or_from_docker() {
    let (server, home) = (Server::with_account(), Home::new());
    home.write("a.wasm", &plugin(None, "a"));
    let tag = server.reference("lab/a:1");
    home.molt(&["push", "a.wasm", &tag]).refused(&["refuses this account", "--password-stdin"]);
    let with_password = ["push", "a.wasm", &tag, "--username", ACCOUNT.0, "--password-stdin"];
    home.molt_reading(&with_password, "byron\n").refused(&["refuses this account"]);
    home.molt_reading(&with_password, &format!("{}\n", ACCOUNT.1)).good();
    home.molt(&["pull", &tag, "-o", "b.wasm"]).refused(&["refuses this account"]);

    // "ada:lovelace" in base64 (RFC 4648).
    let config = format!(r#"{{"auths": {{"{}": {{"auth": "YWRhOmxvdmVsYWNl"}}}}}}"#, server.host());
    home.write(".docker/config.json", config.as_bytes());
    home.molt(&["pull", &tag, "-o", "b.wasm"]).good();
    assert_eq!(fs::read(home.path("b.wasm")).unwrap(), plugin(None, "a"));
    home.write(".docker/config.json", b"{");
    home.molt(&["pull", &tag, "-o", "c.wasm"]).refused(&["config.json cannot be read"]);
}

#[test]
fn only_plugins_are_pushed() {
    let (server, home) = (Server::start(), Home::new());
    home.write("text.wasm", b"hello");
    home.write("core.wasm", b"\0asm\x01\0\0\0");
    home.write("empty.wasm", b"\0asm\x0d\0\x01\0");
    for (file, why) in [
        ("text.wasm", "not a WebAssembly file"),
        ("core.wasm", "core WebAssembly module"),
        ("empty.wasm", "not a Molt plugin"),
        ("none.wasm", "cannot read"),
    ] {
        home.molt(&["push", file, &server.reference("lab/a:1")]).refused(&[why]);
    }
    home.molt(&["pull", &server.reference("lab/a:1")]).refused(&["is not there"]);
}
