//! Grants that cannot be given are told before anything runs.

use super::{access, common};
use molt_sandbox::Grants;
use std::path::PathBuf;

fn refused(plugin: &str, grants: Grants) -> String {
    common::SANDBOX.reward(&common::library(), plugin, access(grants)).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn directories_that_are_not_there_or_hide_each_other() {
    let read = |paths: &[PathBuf]| {
        refused("grant-files", Grants { read: paths.to_vec(), scratch_mib: Some(1), ..Grants::default() })
    };
    let place = tempfile::tempdir().unwrap();
    let missing = place.path().join("missing");
    let error = read(std::slice::from_ref(&missing));
    assert!(error.starts_with("plugins.grant.grant-files.read cannot be granted: "), "{error}");
    assert!(error.contains("missing") && error.contains("No such file"), "{error}");
    std::fs::write(&missing, "a file").unwrap();
    assert!(read(&[missing]).contains("ot a directory"));
    for path in ["/", "..", "."] {
        assert!(read(&[path.into()]).contains("name the directory itself, e.g. ../data"), "{path}");
    }
    let (a, b) = (place.path().join("a/x"), place.path().join("b/x"));
    let scratch = place.path().join("scratch");
    for dir in [&a, &b, &scratch] {
        std::fs::create_dir_all(dir).unwrap();
    }
    assert!(read(&[a, b]).contains("two directories as /x"));
    assert!(read(&[scratch]).contains("two directories as /scratch"));
}

#[test]
fn an_allow_list_that_cannot_be_read() {
    let http = vec!["https://example.org/".to_owned()];
    let error = refused("grant-http", Grants { http, ..Grants::default() });
    assert!(
        error.starts_with("plugins.grant.grant-http.http cannot be granted: \"https://example.org/\" is not"),
        "{error}"
    );
}

#[test]
fn an_import_without_its_grant_is_told_with_the_setting() {
    let error = refused("grant-http", Grants::default());
    assert!(error.contains("plugins.grant.grant-http.http = [\"GET https://example.org\"]"), "{error}");
}
