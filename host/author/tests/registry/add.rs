//! Into the search path.

use crate::home::{Home, after, plugin};
use crate::server::{Server, digest};
use std::fs;

#[test]
fn a_plugin_is_added_from_a_file_and_from_a_registry_and_found_by_name_version_and_digest() {
    let (server, home) = (Server::start(), Home::new());
    let bytes = plugin(Some("0.1.0"), "a");
    home.write("dist/mine.wasm", &bytes);
    let added = home.molt(&["add", "dist/mine.wasm"]).good();
    assert_eq!(after(&added, "plugin"), digest(&bytes));
    assert_eq!(fs::read(home.installed("mine.wasm")).unwrap(), bytes);
    home.molt(&["push", "dist/mine.wasm", &server.reference("lab/theirs:0.1.0")]).good();
    home.molt(&["add", &server.reference("lab/theirs:0.1.0")]).good();
    assert_eq!(home.files("data/molt/plugins"), ["mine.wasm", "theirs.wasm"]);
    let short = &digest(&bytes)["sha256:".len()..][..12];
    for name in ["mine", "theirs", "mine@0.1", "theirs@0.1.0", &format!("mine@sha256:{short}")] {
        let shown = home.molt(&["inspect", name]).good();
        assert_eq!(after(&shown, "digest"), digest(&bytes), "{name}");
    }
    let other = "0".repeat(12);
    home.molt(&["inspect", &format!("mine@sha256:{other}")]).refused(&[&other, &digest(&bytes)]);
    home.molt(&["inspect", "mine@sha256:123"]).refused(&["12 to 64"]);
}

#[test]
fn the_same_plugin_twice_is_no_conflict_and_another_of_the_same_version_is() {
    let home = Home::new();
    let (first, second) = (plugin(Some("0.1.0"), "1"), plugin(Some("0.1.0"), "2"));
    home.write("a.wasm", &first);
    home.molt(&["add", "a.wasm"]).good();
    home.molt(&["add", "a.wasm"]).good();
    home.write("a.wasm", &second);
    home.molt(&["add", "a.wasm"]).refused(&[&digest(&first), &digest(&second), "--force"]);
    assert_eq!(fs::read(home.installed("a.wasm")).unwrap(), first);
    home.molt(&["add", "a.wasm", "--force"]).good();
    assert_eq!(fs::read(home.installed("a.wasm")).unwrap(), second);
    // Without a version there is nothing to keep the old one by.
    home.write("a.wasm", &plugin(None, "3"));
    home.molt(&["add", "a.wasm"]).good();
    home.write("a.wasm", &plugin(None, "4"));
    home.molt(&["add", "a.wasm"]).refused(&["--force"]);
    assert_eq!(home.files("data/molt/plugins"), ["a.wasm", "a@0.1.0.wasm"]);
    assert_eq!(fs::read(home.installed("a@0.1.0.wasm")).unwrap(), second);
}

#[test]
fn an_older_version_is_kept_and_found_by_its_version_and_its_digest() {
    let home = Home::new();
    let versions = ["0.1.9", "0.1.10", "0.2.0"].map(|version| (version, plugin(Some(version), version)));
    for (_, bytes) in &versions {
        home.write("a.wasm", bytes);
        home.molt(&["add", "a.wasm"]).good();
    }
    assert_eq!(home.files("data/molt/plugins"), ["a.wasm", "a@0.1.10.wasm", "a@0.1.9.wasm"]);
    let shown = |name: &str| after(&home.molt(&["inspect", name]).good(), "digest");
    assert_eq!(shown("a"), digest(&versions[2].1));
    assert_eq!(shown("a@0.1"), digest(&versions[1].1), "the newest that fits");
    assert_eq!(shown("a@0.1.9"), digest(&versions[0].1));
    assert_eq!(shown(&format!("a@{}", digest(&versions[0].1))), digest(&versions[0].1));
    let list = home.molt(&["list"]).good();
    assert_eq!(list.lines().filter(|line| line.starts_with("a ")).count(), 1, "{list}");

    // Back to the older one: the newer is kept in turn.
    home.write("a.wasm", &versions[0].1);
    home.molt(&["add", "a.wasm"]).good();
    assert_eq!(shown("a"), digest(&versions[0].1));
    assert_eq!(shown("a@0.2"), digest(&versions[2].1));
}

#[test]
fn of_several_at_once_no_version_is_lost() {
    let home = Home::new();
    let versions: Vec<String> = (0..8).map(|minor| format!("0.{minor}.0")).collect();
    for version in &versions {
        home.write(&format!("{version}/a.wasm"), &plugin(Some(version), "1"));
    }
    let home = &home;
    std::thread::scope(|scope| {
        for version in &versions {
            scope.spawn(move || home.molt(&["add", &format!("{version}/a.wasm")]).good());
        }
    });
    assert_eq!(home.files("data/molt/plugins").len(), versions.len());
    for version in &versions {
        let shown = home.molt(&["inspect", &format!("a@{version}")]).good();
        assert_eq!(after(&shown, "digest"), digest(&plugin(Some(version), "1")));
    }
}

#[test]
fn a_version_cannot_name_a_file_elsewhere() {
    let home = Home::new();
    home.write("a.wasm", &plugin(Some("../../../evil"), "1"));
    home.molt(&["add", "a.wasm"]).good();
    home.write("a.wasm", &plugin(Some("0.2.0"), "2"));
    home.molt(&["add", "a.wasm"]).good();
    assert_eq!(home.files("data/molt/plugins"), ["a.wasm", "a@.._.._.._evil.wasm"]);
    assert_eq!(home.files("."), ["a.wasm", "data"]);
}

#[test]
fn what_is_no_plugin_is_not_added() {
    let home = Home::new();
    home.write("a.wasm", b"hello");
    home.molt(&["add", "a.wasm"]).refused(&["not a WebAssembly file"]);
    home.molt(&["add", "none.wasm"]).refused(&["none.wasm"]);
    assert_eq!(home.files("data/molt/plugins"), [""; 0]);
}
