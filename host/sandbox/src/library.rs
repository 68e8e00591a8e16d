//! Where plugins are found: one search path, by name.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::info::{Info, inspect};

/// The directories that hold plugins, in the order in which they are searched.
#[derive(Debug, Clone)]
pub struct Library {
    places: Vec<PathBuf>,
}

impl Library {
    /// `extra`, then the directories in `MOLT_PLUGIN_PATH`, `./plugins`, `plugins` beside the executable and
    /// beside its directory, and `molt/plugins` in the user's data directory.
    pub fn new(extra: &[PathBuf]) -> Self {
        let mut places = extra.to_vec();
        if let Some(paths) = env::var_os("MOLT_PLUGIN_PATH") {
            places.extend(env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()));
        }
        places.push("plugins".into());
        if let Ok(executable) = env::current_exe() {
            places.extend(executable.ancestors().skip(1).take(2).map(|place| place.join("plugins")));
        }
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
        if let Some(data) = env::var_os("XDG_DATA_HOME").map(PathBuf::from).or_else(home) {
            places.push(data.join("molt/plugins"));
        }
        Self { places }
    }

    /// The file of the plugin called `name`: a name, `name@version` where the version may be shortened, or a
    /// path that ends in `.wasm`.
    ///
    /// # Errors
    /// Nothing is there; the message says where it looked and which names are near.
    pub fn find(&self, name: &str) -> Result<PathBuf, LoadError> {
        let path = Path::new(name);
        if path.extension().is_some_and(|extension| extension == "wasm") {
            return if path.is_file() {
                Ok(path.to_owned())
            } else {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                Err(LoadError::Unreadable { path: path.to_owned(), source })
            };
        }
        let (stem, version) = name.split_once('@').map_or((name, None), |(stem, v)| (stem, Some(v)));
        let found = self.files().into_iter().find(|file| {
            file_name(file) == stem
                && version.is_none_or(|wanted| inspect(file).is_ok_and(|info| matches(&info, wanted)))
        });
        found.ok_or_else(|| LoadError::NotFound {
            name: name.to_owned(),
            near: self.near(stem),
            looked_in: self.places.clone(),
        })
    }

    /// Every plugin file on the search path by name. A name that is found twice is the first of the two.
    pub fn list(&self) -> Vec<Result<Info, LoadError>> {
        let mut files = self.files();
        let mut seen = std::collections::HashSet::new();
        files.retain(|file| seen.insert(file_name(file)));
        files.sort_by_key(|file| file_name(file));
        files.iter().map(|file| inspect(file)).collect()
    }

    /// All regular files `*.wasm`, place after place. A place that does not exist has none.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for place in &self.places {
            let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
            let mut here: Vec<PathBuf> = entries
                .map(|entry| entry.path())
                .filter(|path| {
                    path.extension().is_some_and(|extension| extension == "wasm") && path.is_file()
                })
                .collect();
            here.sort();
            files.extend(here);
        }
        files
    }

    /// Names that are like `name`, the likest first.
    fn near(&self, name: &str) -> Vec<String> {
        let mut names: Vec<(f64, String)> = self
            .files()
            .iter()
            .map(|file| file_name(file))
            .map(|candidate| (strsim::jaro_winkler(name, &candidate), candidate))
            .filter(|(likeness, _)| *likeness > 0.8)
            .collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        names.dedup_by(|a, b| a.1 == b.1);
        names.into_iter().map(|(_, name)| name).take(2).collect()
    }
}

fn file_name(file: &Path) -> String {
    file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// Whether the plugin's version is `wanted`, or begins with it part by part: 0.1 takes 0.1.3 and not 0.10.0.
fn matches(info: &Info, wanted: &str) -> bool {
    let Some(version) = info.version.as_deref() else { return false };
    let mut parts = version.split('.');
    wanted.split('.').all(|part| parts.next() == Some(part))
}
