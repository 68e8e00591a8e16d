//! Texts of users, authors and registries: allow-list entries, plugin references, lock files.
//!
//! What the allow-list takes to be one origin, the HTTP client must take to be the same one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use molt_core::settings::{HttpRule, Origin};
use molt_sandbox::{Library, Lock};
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;

struct World {
    library: Library,
    lock: PathBuf,
    _dir: TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let dir = TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("some.wasm"), b"\0asm\x0d\0\x01\0").expect("a file");
    World { library: Library::new(&[dir.path().into()]), lock: dir.path().join("molt.lock"), _dir: dir }
});

fuzz_target!(|input: &[u8]| {
    let Some((&which, rest)) = input.split_first() else { return };
    match which % 4 {
        0 => _ = text(rest).parse::<HttpRule>(),
        1 => origin(&text(rest)),
        2 => _ = WORLD.library.find(&text(rest).replace('/', "")),
        _ => {
            std::fs::write(&WORLD.lock, rest).expect("the file is written");
            if let Ok(lock) = Lock::load(&WORLD.lock) {
                let again = lock.to_toml().expect("what was read can be written");
                std::fs::write(&WORLD.lock, again).expect("the file is written");
                assert_eq!(format!("{:?}", Lock::load(&WORLD.lock).expect("and read")), format!("{lock:?}"));
            }
        }
    }
});

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Scheme and authority, as two programs understand them.
fn origin(authority: &str) {
    for scheme in ["http", "https"] {
        let Ok(origin) = Origin::new(scheme, authority) else { continue };
        let shown = origin.to_string();
        let (_, rest) = shown.split_once("://").expect("it begins with its scheme");
        assert_eq!(Origin::new(scheme, rest).as_ref(), Ok(&origin), "{authority:?} is shown as {shown:?}");
        // Our rules are stricter than the client's. Whatever it takes to be another place is a hole.
        let given = reqwest::Url::parse(&format!("{scheme}://{authority}/"));
        let ours = reqwest::Url::parse(&shown);
        if let Ok(given) = given {
            let ours = ours.unwrap_or_else(|error| panic!("{shown:?}: {error}"));
            assert_eq!(given.origin(), ours.origin(), "{authority:?} is shown as {shown:?}");
        }
    }
}
