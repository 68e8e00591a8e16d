//! `plugins.lock`: which components a run used, so that a later run can insist on the same ones.

use molt_core::settings::Grants;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use thiserror::Error;

use crate::info::Info;

/// The version of the file's format.
const FORMAT: u32 = 1;

/// The name of the file in a run directory.
pub const LOCK_FILE: &str = "plugins.lock";

/// The components of a run. A run fills one as it loads its plugins ([`Lock::add`]) and writes
/// [`Lock::to_toml`] to [`LOCK_FILE`]; a run with `plugins.lock` set reads that file first ([`Lock::load`])
/// and asks it ([`Lock::check`]) about every plugin that it has loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    format: u32,
    #[serde(default, rename = "plugin")]
    plugins: Vec<Locked>,
}

/// One component of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// What the run used it for: `agent`, `reward`, ….
    pub role: String,
    pub name: String,
    pub version: Option<String>,
    /// The version of `molt:plugin` that it was built against.
    pub contract: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Where it was found. Another place is as good.
    pub path: PathBuf,
    /// What it was granted.
    pub grants: Grants,
}

/// Why a run cannot go by a lock file.
#[derive(Debug, Error)]
pub enum LockError {
    #[error("cannot read the lock file {}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },

    #[error("{} is not a lock file of plugins", .path.display())]
    Malformed { path: PathBuf, source: Box<toml::de::Error> },

    #[error("{} has format {found}, and this Molt reads format {FORMAT}", .path.display())]
    Format { path: PathBuf, found: u32 },

    #[error(
        "plugin `{name}` in {} has digest {found}, and the lock file has {}; ask for `{name}@{}` to get the locked \
         one from the search path, install it with `molt plugin add`, or leave out plugins.lock",
        .path.display(), .locked.join(" or "), short(.locked)
    )]
    Differs { name: String, path: PathBuf, found: String, locked: Vec<String> },

    #[error(
        "plugin `{name}` is not in the lock file, which has {}; use one of these, or leave out plugins.lock",
        listed(.has)
    )]
    Absent { name: String, has: Vec<String> },
}

/// Enough of the first digest for a reference.
fn short(locked: &[String]) -> String {
    locked.first().map_or_else(String::new, |digest| digest.chars().take("sha256:".len() + 12).collect())
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no plugin".into() } else { names.join(", ") }
}

/// In the order in which they first come.
fn each_once<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut once: Vec<String> = Vec::new();
    for text in texts {
        if !once.contains(text) {
            once.push(text.clone());
        }
    }
    once
}

impl Default for Lock {
    fn default() -> Self {
        Self { format: FORMAT, plugins: Vec::new() }
    }
}

impl Lock {
    /// Reads a lock file.
    ///
    /// # Errors
    /// No such file, not a lock file, or one of another format.
    pub fn load(path: &Path) -> Result<Self, LockError> {
        let at = || path.to_owned();
        let text =
            std::fs::read_to_string(path).map_err(|source| LockError::Unreadable { path: at(), source })?;
        let malformed = |source| LockError::Malformed { path: at(), source: Box::new(source) };
        let table: toml::Table = text.parse().map_err(malformed)?;
        // Before the rest, which a later format may write in another way.
        if let Some(found) = table.get("format").and_then(toml::Value::as_integer)
            && found != i64::from(FORMAT)
        {
            return Err(LockError::Format { path: at(), found: u32::try_from(found).unwrap_or(u32::MAX) });
        }
        toml::from_str(&text).map_err(malformed)
    }

    /// Adds a component that the run uses. The same one for the same role is kept once.
    pub fn add(&mut self, role: &str, info: &Info, grants: &Grants) {
        let locked = Locked {
            role: role.to_owned(),
            name: info.name.clone(),
            version: info.version.clone(),
            contract: info.contract.clone(),
            digest: info.digest.clone(),
            path: info.path.clone(),
            grants: grants.clone(),
        };
        if !self.plugins.contains(&locked) {
            self.plugins.push(locked);
        }
    }

    /// The components, in the order in which they were added.
    pub fn plugins(&self) -> &[Locked] {
        &self.plugins
    }

    /// Whether the lock file has this very component, whatever the role and the place.
    ///
    /// # Errors
    /// The name has another digest in the lock file, or is not in it.
    pub fn check(&self, info: &Info) -> Result<(), LockError> {
        let same_name = self.plugins.iter().filter(|p| p.name == info.name);
        let locked = each_once(same_name.map(|p| &p.digest));
        if locked.contains(&info.digest) {
            return Ok(());
        }
        Err(if locked.is_empty() {
            LockError::Absent {
                name: info.name.clone(),
                has: each_once(self.plugins.iter().map(|p| &p.name)),
            }
        } else {
            LockError::Differs {
                name: info.name.clone(),
                path: info.path.clone(),
                found: info.digest.clone(),
                locked,
            }
        })
    }

    /// The text of [`LOCK_FILE`].
    ///
    /// # Errors
    /// A path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let text = toml::to_string(self)?;
        Ok(format!(
            "# The components of this run. `--plugins.lock FILE` makes another run insist on them.\n{text}"
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::info::Kind;
    use molt_core::settings::GrantedModel;

    fn info(name: &str, digit: char) -> Info {
        Info {
            name: name.into(),
            kind: Kind::Reward,
            version: Some("0.1.0".into()),
            description: None,
            contract: "0.2.0".into(),
            digest: format!("sha256:{}", String::from(digit).repeat(64)),
            size: 8,
            path: format!("plugins/{name}.wasm").into(),
            imports: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_admits_the_same_components_only() {
        let mut lock = Lock::default();
        let grants =
            Grants { model: Some(GrantedModel::Judge), read: vec!["data".into()], ..Grants::default() };
        lock.add("reward", &info("judge", 'a'), &grants);
        lock.add("reward", &info("judge", 'a'), &grants);
        lock.add("estimator", &info("grpo", 'b'), &Grants::default());
        assert_eq!(lock.plugins().len(), 2);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        std::fs::write(&path, lock.to_toml().unwrap()).unwrap();
        let read = Lock::load(&path).unwrap();
        assert_eq!(read, lock);
        assert_eq!(read.plugins()[0].grants, grants);

        let elsewhere = Info { path: "other/judge.wasm".into(), ..info("judge", 'a') };
        assert!(read.check(&elsewhere).is_ok(), "the place does not matter");
        let differs = read.check(&info("judge", 'c')).unwrap_err().to_string();
        for part in [&*"a".repeat(64), &"c".repeat(64), "plugins/judge.wasm", "judge@sha256:aaaaaaaaaaaa`"] {
            assert!(differs.contains(part), "{differs} lacks {part}");
        }
        lock.add("code", &info("judge", 'b'), &Grants::default());
        lock.add("interpreter", &info("judge", 'a'), &Grants::default());
        let differs = lock.check(&info("judge", 'c')).unwrap_err().to_string();
        assert_eq!(differs.matches(&*"a".repeat(64)).count(), 1, "{differs}");
        let absent = lock.check(&info("rloo", 'a')).unwrap_err().to_string();
        assert!(absent.contains("which has judge, grpo;"), "{absent}");
        let absent = read.check(&info("rloo", 'a')).unwrap_err().to_string();
        assert!(absent.contains("`rloo` is not in the lock file, which has judge, grpo"), "{absent}");
    }

    #[test]
    fn a_file_of_another_format_or_kind_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let load = |text: &str| {
            let path = dir.path().join(LOCK_FILE);
            std::fs::write(&path, text).unwrap();
            Lock::load(&path)
        };
        assert!(load("format = 1\n").unwrap().plugins().is_empty());
        assert!(matches!(load("format = 2\n[plugins]\n"), Err(LockError::Format { found: 2, .. })));
        for text in ["", "version = 4\n", "format = 1\n[[plugin]]\nname = \"a\"\n", "{", "format = \"1\""] {
            assert!(matches!(load(text), Err(LockError::Malformed { .. })), "{text:?}");
        }
        assert!(matches!(Lock::load(&dir.path().join("none")), Err(LockError::Unreadable { .. })));
    }
}
