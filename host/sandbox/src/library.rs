//! Where plugins are found: one search path, by name, version or digest.

use semver::Version;
use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::info::{self, Info, Kind, inspect, plugin_name};
use crate::reference::{Reference, Wanted, is_wasm};

/// The directories that hold plugins, in the order in which they are searched.
#[derive(Debug, Clone)]
pub struct Library {
    places: Vec<PathBuf>,
}

impl Library {
    /// `extra`, then the directories in `MOLT_PLUGIN_PATH`, `./plugins`, `plugins` beside the executable and
    /// beside its directory, and [`Library::home`].
    pub fn new(extra: &[PathBuf]) -> Self {
        let mut places = extra.to_vec();
        if let Some(paths) = env::var_os("MOLT_PLUGIN_PATH") {
            places.extend(env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()));
        }
        places.push("plugins".into());
        if let Ok(executable) = env::current_exe() {
            places.extend(executable.ancestors().skip(1).take(2).map(|place| place.join("plugins")));
        }
        places.extend(Self::home());
        Self { places }
    }

    /// Where `molt plugin add` installs: `molt/plugins` in the user's data directory, `XDG_DATA_HOME` or
    /// `~/.local/share`. None without a home directory.
    pub fn home() -> Option<PathBuf> {
        let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
        Some(data.join("molt/plugins"))
    }

    /// The file of the plugin called `name`, which is one of
    ///
    /// * `grpo`: the first of that name;
    /// * `grpo@0.1`: the first of that name whose version is 0.1, or begins with it part by part;
    /// * `grpo@sha256:3f2a…`: the one of that name with this digest; twelve hexadecimal digits or more;
    /// * `some/path.wasm`: this file, also with `@sha256:…` behind it.
    ///
    /// # Errors
    /// Nothing is there; the message says where it looked and which names are near. The name has a digest, and no
    /// file of that name has it; or it is no reference at all.
    pub fn find(&self, name: &str) -> Result<PathBuf, LoadError> {
        let reference = Reference::parse(name)?;
        let candidates = self.candidates(&reference)?;
        let found = candidates.iter().find(|file| match &reference.wanted {
            Wanted::Any => true,
            wanted => inspect(file).is_ok_and(|info| wanted.admits(&info)),
        });
        found.cloned().ok_or_else(|| self.refuse(&reference, &candidates))
    }

    /// What the plugin calls itself that is asked for as `name`, by name, version, digest or path.
    pub fn own_name(name: &str) -> String {
        let stem = Reference::parse(name).map_or(name, |reference| reference.stem);
        if is_wasm(Path::new(stem)) { plugin_name(Path::new(stem)) } else { stem.to_owned() }
    }

    /// Reads the plugin called `name`; a digest in the name holds for the very bytes that are returned.
    pub(crate) fn read(&self, name: &str) -> Result<(Info, Vec<u8>), LoadError> {
        let reference = Reference::parse(name)?;
        let candidates = self.candidates(&reference)?;
        for file in &candidates {
            match info::read(file) {
                Ok((info, bytes)) if reference.wanted.admits(&info) => return Ok((info, bytes)),
                // Another file may have the version or the digest.
                Err(error) if reference.wanted == Wanted::Any => return Err(error),
                _ => {}
            }
        }
        Err(self.refuse(&reference, &candidates))
    }

    /// Every plugin file on the search path by name. A name that is found twice is the first of the two.
    pub fn list(&self) -> Vec<Result<Info, LoadError>> {
        let mut files = self.files();
        let mut seen = std::collections::HashSet::new();
        files.retain(|file| seen.insert(plugin_name(file)));
        files.sort_by_key(|file| plugin_name(file));
        files.iter().map(|file| inspect(file)).collect()
    }

    /// What the reference could mean without its version or digest, the first choice first.
    fn candidates(&self, reference: &Reference<'_>) -> Result<Vec<PathBuf>, LoadError> {
        let path = Path::new(reference.stem);
        if is_wasm(path) {
            return if path.is_file() {
                Ok(vec![path.to_owned()])
            } else {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                Err(LoadError::Unreadable { path: path.to_owned(), source })
            };
        }
        let mut files = self.files();
        files.retain(|file| plugin_name(file) == reference.stem);
        Ok(files)
    }

    /// Why none of `candidates` is what was asked for.
    fn refuse(&self, reference: &Reference<'_>, candidates: &[PathBuf]) -> LoadError {
        let of_file = |file: &PathBuf| match inspect(file) {
            Ok(info) => (file.clone(), info.digest),
            Err(_) => (file.clone(), "unreadable".into()),
        };
        match &reference.wanted {
            Wanted::Digest(digest) if !candidates.is_empty() => LoadError::Digest {
                name: reference.stem.to_owned(),
                wanted: digest.clone(),
                found: candidates.iter().map(of_file).collect(),
            },
            _ => LoadError::NotFound {
                name: reference.text.to_owned(),
                near: self.near(reference.stem, |_| true),
                looked_in: self.places.clone(),
            },
        }
    }

    /// All regular files `*.wasm`, place after place. A place that does not exist has none. Within a place
    /// `NAME.wasm` comes before the `NAME@VERSION.wasm` that are kept beside it, the newest of these first.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for place in &self.places {
            let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
            let mut here: Vec<PathBuf> =
                entries.map(|entry| entry.path()).filter(|path| is_wasm(path) && path.is_file()).collect();
            here.sort_by_cached_key(|file| {
                let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let kept = stem.split_once('@').map(|(_, version)| Version::parse(version).ok());
                (plugin_name(file), kept.is_some(), Reverse(kept.flatten()), stem)
            });
            files.extend(here);
        }
        files
    }

    /// What was not found, with hints at plugins of the wanted kind alone.
    pub(crate) fn of_kind(&self, error: LoadError, wanted: Kind) -> LoadError {
        match error {
            LoadError::NotFound { name, looked_in, .. } => {
                let is_wanted = |file: &PathBuf| inspect(file).is_ok_and(|info| info.kind == wanted);
                let stem = Reference::parse(&name).map_or(&*name, |reference| reference.stem);
                let near = self.near(stem, is_wanted);
                LoadError::NotFound { name, near, looked_in }
            }
            other => other,
        }
    }

    /// Names of files that are `fit` and like `name`, the likest first.
    fn near(&self, name: &str, fit: impl Fn(&PathBuf) -> bool) -> Vec<String> {
        let files = self.files();
        let mut names: Vec<(f64, String, &PathBuf)> = files
            .iter()
            .map(|file| (plugin_name(file), file))
            .map(|(candidate, file)| (strsim::jaro_winkler(name, &candidate), candidate, file))
            .filter(|(likeness, ..)| *likeness > 0.8)
            .collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        names.dedup_by(|a, b| a.1 == b.1);
        names.into_iter().filter(|(.., file)| fit(file)).map(|(_, name, _)| name).take(2).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::fs;

    /// A component that exports an empty `reward`, with a version; a salt makes its digest another one.
    fn plugin(version: &str, salt: &str) -> Vec<u8> {
        // Binary format of the component model: a section is its number, its length and its items.
        let section = |id: u8, body: Vec<u8>| [vec![id, u8::try_from(body.len()).unwrap()], body].concat();
        let name = |name: &str| [&[u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
        let export = [vec![1, 0], name("molt:plugin/reward@0.2.0"), vec![5, 0, 0]].concat();
        [
            b"\0asm\x0d\0\x01\0".to_vec(),
            section(5, vec![1, 1, 0]), // an instance made of no exports
            section(11, export),
            section(0, [name("version"), version.as_bytes().to_vec()].concat()),
            section(0, [name("salt"), salt.as_bytes().to_vec()].concat()),
        ]
        .concat()
    }

    #[test]
    fn a_name_means_the_first_place_a_version_the_newest_that_fits_and_a_digest_one_file() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let library = Library { places: vec![first.path().into(), second.path().into()] };
        let write = |dir: &tempfile::TempDir, file: &str, version: &str| {
            fs::write(dir.path().join(file), plugin(version, file)).unwrap();
            inspect(&dir.path().join(file)).unwrap().digest
        };
        write(&first, "a@0.1.9.wasm", "0.1.9");
        write(&first, "a@0.1.10.wasm", "0.1.10");
        write(&first, "a@nightly.wasm", "nightly");
        let last = write(&second, "a.wasm", "0.3.0");
        let found =
            |name: &str| library.find(name).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(found("a"), "a@0.1.10.wasm", "the newest of the first place, whatever the second has");
        assert_eq!(found("a@0.1"), "a@0.1.10.wasm");
        assert_eq!(found("a@0.1.9"), "a@0.1.9.wasm");
        assert_eq!(found("a@nightly"), "a@nightly.wasm");
        assert_eq!(found("a@0.3"), "a.wasm");
        assert_eq!(found(&format!("a@{}", &last[.."sha256:".len() + 12])), "a.wasm");
        write(&first, "a.wasm", "0.0.1");
        assert_eq!(found("a"), "a.wasm", "the one without a version in its name comes first");
        assert!(matches!(library.find("a@0.2"), Err(LoadError::NotFound { .. })));
        let near = |wanted| match library.of_kind(library.find("a@0.2").unwrap_err(), wanted) {
            LoadError::NotFound { near, .. } => near,
            other => panic!("{other}"),
        };
        assert_eq!(near(Kind::Reward), ["a"]);
        assert!(near(Kind::Estimator).is_empty(), "a reward is no estimator");
        assert_eq!(library.list().len(), 1);
    }

    #[test]
    fn a_digest_holds_for_the_bytes_that_are_loaded_and_a_false_one_names_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library { places: vec![dir.path().into()] };
        let path = dir.path().join("a.wasm");
        fs::write(&path, plugin("0.1.0", "1")).unwrap();
        let digest = inspect(&path).unwrap().digest;
        let by_name = format!("a@{digest}");
        let by_path = format!("{}@{digest}", path.display());
        for name in [&by_name, &by_path] {
            let (info, bytes) = library.read(name).unwrap();
            assert_eq!((info.name.as_str(), info.digest.as_str()), ("a", digest.as_str()));
            assert_eq!(bytes, plugin("0.1.0", "1"));
            assert_eq!(Library::own_name(name), info.name);
        }
        fs::write(&path, plugin("0.1.0", "2")).unwrap();
        let other = inspect(&path).unwrap().digest;
        for name in [&by_name, &by_path] {
            let refused = library.read(name).unwrap_err().to_string();
            assert!(refused.contains(&digest) && refused.contains(&other), "{refused}");
        }
        assert!(matches!(library.find(&format!("b@{digest}")), Err(LoadError::NotFound { .. })));
    }
}
