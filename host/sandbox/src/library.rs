//! Where plugins are found: one search path, by name, version or digest.

use semver::Version;
use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::info::{self, Info, inspect, plugin_name};
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

    /// Reads the plugin called `name`; a digest in the name holds for the very bytes that are returned.
    pub(crate) fn read(&self, name: &str) -> Result<(Info, Vec<u8>), LoadError> {
        let reference = Reference::parse(name)?;
        let path = self.find(name)?;
        let (info, bytes) = info::read(&path)?;
        if !reference.wanted.admits(&info) {
            return Err(self.refuse(&reference, &[path]));
        }
        Ok((info, bytes))
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
                near: self.near(reference.stem),
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

    /// Names that are like `name`, the likest first.
    fn near(&self, name: &str) -> Vec<String> {
        let mut names: Vec<(f64, String)> = self
            .files()
            .iter()
            .map(|file| plugin_name(file))
            .map(|candidate| (strsim::jaro_winkler(name, &candidate), candidate))
            .filter(|(likeness, _)| *likeness > 0.8)
            .collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        names.dedup_by(|a, b| a.1 == b.1);
        names.into_iter().map(|(_, name)| name).take(2).collect()
    }
}
