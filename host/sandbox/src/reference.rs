//! How a plugin is named: a name or a file, and perhaps the version or the digest that it must have.

use std::path::Path;

use crate::error::LoadError;
use crate::info::Info;

/// Fewer digits of a digest could mean two files.
const DIGITS: usize = 12;

/// A parsed reference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference<'a> {
    /// As it was given.
    pub(crate) text: &'a str,
    /// The name, or the path of a file.
    pub(crate) stem: &'a str,
    pub(crate) wanted: Wanted<'a>,
}

/// What must hold of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted<'a> {
    Any,
    /// The version, or its beginning.
    Version(&'a str),
    /// `sha256:` and the beginning of the digest.
    Digest(String),
}

impl<'a> Reference<'a> {
    /// # Errors
    /// The digest is too short, too long or has other characters than hexadecimal digits; the name is empty.
    pub(crate) fn parse(text: &'a str) -> Result<Self, LoadError> {
        let bad = |why| LoadError::Reference { text: text.to_owned(), why };
        let (stem, wanted) = if let Some((stem, hex)) = text.rsplit_once("@sha256:") {
            if hex.len() < DIGITS || hex.len() > 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(bad("a digest is sha256: and 12 to 64 hexadecimal digits"));
            }
            (stem, Wanted::Digest(format!("sha256:{}", hex.to_ascii_lowercase())))
        } else if is_wasm(Path::new(text)) {
            (text, Wanted::Any)
        } else if let Some((stem, version)) = text.split_once('@') {
            (stem, Wanted::Version(version))
        } else {
            (text, Wanted::Any)
        };
        if stem.is_empty() {
            return Err(bad("the plugin's name is missing"));
        }
        Ok(Self { text, stem, wanted })
    }
}

impl Wanted<'_> {
    /// Whether the file is what is wanted. 0.1 takes 0.1.3 and not 0.10.0.
    pub(crate) fn admits(&self, info: &Info) -> bool {
        match self {
            Wanted::Any => true,
            Wanted::Digest(digest) => info.digest.starts_with(digest.as_str()),
            Wanted::Version(wanted) => info.version.as_deref().is_some_and(|version| {
                let mut parts = version.split('.');
                wanted.split('.').all(|part| parts.next() == Some(part))
            }),
        }
    }
}

pub(crate) fn is_wasm(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wasm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_versions_digests_and_files_are_told_apart() {
        let digest = |text: &str| Wanted::Digest(text.to_owned());
        for (text, stem, wanted) in [
            ("grpo", "grpo", Wanted::Any),
            ("grpo@0.1", "grpo", Wanted::Version("0.1")),
            ("grpo@sha256:3f2A0b1c9d8e", "grpo", digest("sha256:3f2a0b1c9d8e")),
            ("a/grpo@0.1.0.wasm", "a/grpo@0.1.0.wasm", Wanted::Any),
            ("a/b.wasm@sha256:3f2a0b1c9d8e", "a/b.wasm", digest("sha256:3f2a0b1c9d8e")),
        ] {
            assert_eq!(Reference::parse(text).ok(), Some(Reference { text, stem, wanted }), "{text}");
        }
    }

    #[test]
    fn a_digest_that_is_short_long_or_not_hexadecimal_is_refused() {
        let long = format!("grpo@sha256:{}", "0".repeat(65));
        for text in ["grpo@sha256:", "grpo@sha256:3f2a0b1c9d8", "grpo@sha256:3f2a0b1c9d8g", &long, "@0.1", ""]
        {
            assert!(matches!(Reference::parse(text), Err(LoadError::Reference { .. })), "{text}");
        }
    }
}
