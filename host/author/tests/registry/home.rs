//! A user: a home directory, and `molt-plugin` run in it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

pub(crate) struct Home {
    dir: TempDir,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    /// Standard output, then standard error.
    pub(crate) text: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Where `add` installs.
    pub(crate) fn installed(&self, file: &str) -> PathBuf {
        self.path("data/molt/plugins").join(file)
    }

    /// Writes a file; returns its name.
    pub(crate) fn write(&self, file: &str, bytes: &[u8]) -> String {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        file.to_owned()
    }

    pub(crate) fn molt(&self, arguments: &[&str]) -> Ran {
        self.molt_reading(arguments, "")
    }

    /// The command with `input` on its standard input.
    pub(crate) fn molt_reading(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = Command::new(env!("CARGO_BIN_EXE_molt-plugin"))
            .args(arguments)
            .current_dir(self.dir.path())
            .env_clear()
            .env("HOME", self.dir.path())
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that refuses its arguments reads nothing.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        Ran { code: output.status.code().unwrap(), text }
    }

    /// Every file below `folder`, sorted.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Ran {
    /// The command succeeded.
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, 0, "{}", self.text);
        self.text
    }

    /// The command refused, and every part is in what it said.
    pub(crate) fn refused(self, parts: &[&str]) {
        assert_eq!(self.code, 2, "{}", self.text);
        for part in parts {
            assert!(self.text.contains(part), "{} lacks {part}", self.text);
        }
    }
}

/// The words that follow `label` on its line.
pub(crate) fn after(text: &str, label: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("{text} lacks {label}")).trim().to_owned()
}

/// A component that is a plugin by what it exports: an empty `reward`. `salt` makes its digest another one.
pub(crate) fn plugin(version: Option<&str>, salt: &str) -> Vec<u8> {
    // Binary format of the component model: a section is its number, its length and its items.
    let section = |id: u8, body: Vec<u8>| [vec![id, u8::try_from(body.len()).unwrap()], body].concat();
    let name = |name: &str| [&[u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    bytes.extend(section(5, vec![1, 1, 0])); // an instance made of no exports
    let export = [vec![1, 0], name("molt:plugin/reward@0.2.0"), vec![5, 0, 0]].concat();
    bytes.extend(section(11, export));
    if let Some(version) = version {
        bytes.extend(section(0, [name("version"), version.as_bytes().to_vec()].concat()));
    }
    bytes.extend(section(0, [name("salt"), salt.as_bytes().to_vec()].concat()));
    bytes
}

/// A plugin that ships, as `cargo xtask plugins` builds it.
pub(crate) fn shipped(name: &str) -> Vec<u8> {
    let from_env = std::env::var_os("MOLT_TEST_PLUGINS").map(PathBuf::from).into_iter();
    let executable = std::env::current_exe().unwrap();
    let mut places = from_env.chain(executable.ancestors().map(Path::to_path_buf));
    let file = places.find_map(|place| fs::read(place.join(format!("plugins/{name}.wasm"))).ok());
    file.expect("no built plugins: run `cargo xtask plugins` first")
}
