//! What a plugin is, where it is found, and how one that cannot be used is refused.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{SANDBOX, library, limits, plugins};
use molt_sandbox::{Info, Kind, Library, LoadError, Sandbox, inspect};
use std::path::Path;

/// A component that exports an empty instance as `export` and imports one as `import`.
fn component(import: Option<&str>, export: &str) -> Vec<u8> {
    // Binary format of the component model: a section is its number, its length and its items.
    let name = |name: &str| [&[0, name.len() as u8], name.as_bytes()].concat();
    let section = |id: u8, body: Vec<u8>| [vec![id, body.len() as u8], body].concat();
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    if let Some(import) = import {
        bytes.extend(section(7, vec![1, 0x42, 0])); // an instance type without exports
        bytes.extend(section(10, [vec![1], name(import), vec![5, 0]].concat())); // imported
    }
    bytes.extend(section(5, vec![1, 1, 0])); // an instance made of no exports
    let index = u8::from(import.is_some());
    bytes.extend(section(11, [vec![1], name(export), vec![5, index, 0]].concat())); // exported
    bytes
}

fn written(dir: &Path, file: &str, bytes: &[u8]) -> String {
    let path = dir.join(file);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn refused(path: &str) -> String {
    SANDBOX.reward(&Library::new(&[]), path, limits()).err().expect("it must be refused").to_string()
}

#[test]
fn inspect_reads_kind_version_description_imports_and_digest() {
    let path = plugins("plugins").join("grpo.wasm");
    let Info { name, kind, version, description, contract, digest, size, imports, .. } =
        inspect(&path).unwrap();
    assert_eq!((name.as_str(), kind, contract.as_str()), ("grpo", Kind::Estimator, "0.2.0"));
    assert_eq!(version.as_deref(), Some("0.1.0"));
    assert!(description.unwrap().starts_with("GRPO"));
    assert_eq!(size, std::fs::metadata(&path).unwrap().len());
    assert!(digest.starts_with("sha256:") && digest.len() == 7 + 64, "{digest}");
    assert!(imports.iter().all(|import| import.starts_with("wasi:")), "{imports:?}");
}

#[test]
fn the_shipped_plugins_are_listed_with_their_kinds() {
    let list = Library::new(&[plugins("plugins")]).list();
    let kind = |name: &str| list.iter().flatten().find(|info| info.name == name).map(|info| info.kind);
    for (name, expected) in [
        ("single-turn", Kind::Environment),
        ("guess-number", Kind::Environment),
        ("exact-match", Kind::Reward),
        ("math", Kind::Reward),
        ("grpo", Kind::Estimator),
        ("reinforce", Kind::Estimator),
    ] {
        assert_eq!(kind(name), Some(expected), "{name}");
    }
}

#[test]
fn a_name_may_have_the_beginning_of_a_version() {
    let library = library();
    for name in ["grpo", "grpo@0", "grpo@0.1", "grpo@0.1.0"] {
        assert!(library.find(name).unwrap().ends_with("grpo.wasm"), "{name}");
    }
    assert!(matches!(library.find("grpo@0.10"), Err(LoadError::NotFound { .. })));
}

#[test]
fn an_unknown_name_is_answered_with_places_and_near_names() {
    let sentence = library().find("gpro").unwrap_err().to_string();
    assert!(sentence.contains("did you mean `grpo`?"), "{sentence}");
    assert!(sentence.contains(plugins("plugins").to_str().unwrap()), "{sentence}");
    let sentence = library().find("zzzzzz").unwrap_err().to_string();
    assert!(!sentence.contains("did you mean"), "{sentence}");
}

#[test]
fn the_wrong_kind_is_named() {
    let sentence = SANDBOX.reward(&library(), "grpo", limits()).err().unwrap().to_string();
    assert_eq!(sentence, "plugin `grpo` is an estimator, and a reward was asked for");
}

#[test]
fn files_that_are_no_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(plugins("plugins").join("grpo.wasm")).unwrap();
    for (bytes, expected) in [
        (b"hello".to_vec(), "not a WebAssembly file"),
        (b"\0asm\x01\0\0\0".to_vec(), "core WebAssembly module"),
        (good[..good.len() / 2].to_vec(), "damaged"),
        (
            component(None, "some:other/interface@1.0.0"),
            "not a Molt plugin: it exports some:other/interface@1.0.0, and a plugin exports one of molt:plugin/",
        ),
    ] {
        let sentence = refused(&written(dir.path(), "bad.wasm", &bytes));
        assert!(sentence.contains(expected) && sentence.contains("bad.wasm"), "{sentence}");
    }
    assert!(refused("/nowhere/at-all.wasm").contains("/nowhere/at-all.wasm"));
}

#[test]
fn a_file_that_is_too_large_is_refused_by_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "huge.wasm", b"");
    std::fs::File::options().write(true).open(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    let sentence = refused(&path);
    assert!(
        sentence.contains("huge.wasm is larger than 64 MiB, too large for a plugin; build"),
        "{sentence}"
    );
    let at_limit = std::fs::File::options().write(true).open(&path).unwrap();
    at_limit.set_len(64 << 20).unwrap();
    assert!(refused(&path).contains("not a WebAssembly file"));
}

#[test]
fn only_regular_files_are_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder.wasm");
    std::fs::create_dir(&folder).unwrap();
    let library = Library::new(&[dir.path().to_owned()]);
    assert!(matches!(library.find("folder"), Err(LoadError::NotFound { .. })));
    let errors = library.list().into_iter().filter_map(Result::err);
    assert_eq!(errors.filter(|error| error.to_string().contains("folder.wasm")).count(), 0);
    assert!(matches!(inspect(&folder), Err(LoadError::Unreadable { .. })));
}

#[test]
fn a_damaged_file_never_crashes_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(plugins("plugins").join("exact-match.wasm")).unwrap();
    for step in 0..40 {
        let mut bad = good.clone();
        let at = 8 + step * (good.len() - 8) / 40;
        bad[at] ^= 0x55;
        // Some damage is harmless, as in a name; what matters is an answer.
        let _ = inspect(Path::new(&written(dir.path(), "bad.wasm", &bad)));
    }
}

#[test]
fn a_newer_contract_is_refused_with_both_versions_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for found in ["0.3.0", "1.0.0", "1.2.0"] {
        let export = format!("molt:plugin/reward@{found}");
        let sentence = refused(&written(dir.path(), "future.wasm", &component(None, &export)));
        assert_eq!(
            sentence,
            format!(
                "plugin `future` is built against molt:plugin {found}, and this Molt runs molt:plugin 0.1.x and \
                 0.2.x; use a newer Molt, or build it against wit/0.2.0"
            )
        );
    }
    let import = component(Some("molt:plugin/model@0.3.0"), "molt:plugin/reward@0.2.0");
    let sentence = refused(&written(dir.path(), "mixed.wasm", &import));
    assert!(sentence.contains("`mixed` is built against molt:plugin 0.3.0"), "{sentence}");
    let old = refused(&written(dir.path(), "old.wasm", &component(None, "molt:plugin/reward@0.0.3")));
    assert!(old.ends_with("0.2.x; build it against wit/0.2.0"), "{old}");
}

#[test]
fn an_import_that_is_not_granted_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (import, remedy) in [
        ("wasi:filesystem/types@0.3.0", ""),
        ("my:own/thing@1.0.0", ""),
        ("wasi:http/outgoing-handler@0.2.6", "plugins.grant.greedy.http"),
        ("molt:plugin/model@0.2.0", "plugins.grant.greedy.model"),
        ("molt:plugin/code@0.2.0", "plugins.grant.greedy.code"),
    ] {
        let bytes = component(Some(import), "molt:plugin/reward@0.2.0");
        let sentence = refused(&written(dir.path(), "greedy.wasm", &bytes));
        let told = format!("plugin `greedy` imports `{import}`, which this run does not grant");
        assert!(sentence.starts_with(&told) && sentence.contains(remedy), "{sentence}");
    }
}

#[test]
fn an_interface_without_its_functions_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sentence = refused(&written(dir.path(), "hollow.wasm", &component(None, "molt:plugin/reward@0.1.0")));
    assert!(sentence.contains("`hollow` cannot be compiled and linked"), "{sentence}");
}

#[test]
fn components_without_end_in_each_other_are_refused() {
    let begin = b"\0asm\x0d\0\x01\0";
    let mut innermost = begin.to_vec();
    for _ in 0..20_000 {
        let length = (0..4).map(|digit| (innermost.len() >> (7 * digit)) as u8 & 0x7f | 0x80);
        let section = [&[4][..], &length.collect::<Vec<u8>>(), &[0]].concat();
        // Written from its end to its beginning: all that is within comes first.
        innermost.extend(section.iter().rev().chain(begin.iter().rev()));
    }
    let outside: Vec<u8> = innermost[begin.len()..].iter().rev().copied().collect();
    let dir = tempfile::tempdir().unwrap();
    let sentence = refused(&written(dir.path(), "onion.wasm", &[&outside[..], begin].concat()));
    assert!(sentence.contains("it has more than 50 components in each other"), "{sentence}");
}

#[test]
fn compiled_code_is_cached_where_only_the_user_may_write() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let sandbox = Sandbox::new(Some(&cache)).unwrap();
    sandbox.reward(&library(), "exact-match", limits()).unwrap();
    assert_eq!(std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(std::fs::read_dir(&cache).unwrap().next().is_some(), "nothing was cached");
    let file = written(dir.path(), "file", b"");
    assert!(matches!(Sandbox::new(Some(Path::new(&file))), Err(LoadError::Cache { .. })));
}
