//! `HOST/REPOSITORY:TAG` and `HOST/REPOSITORY@sha256:…`.

use super::RegistryError;
use std::fmt;

/// Where an artifact is. The host is always named: there is no default registry.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    inner: oci_client::Reference,
}

impl Reference {
    /// # Errors
    /// No host, neither tag nor digest, or characters that registries do not take.
    pub(crate) fn parse(text: &str) -> Result<Self, RegistryError> {
        let bad = |why: &str| RegistryError::Reference { text: text.to_owned(), why: why.to_owned() };
        if !Self::names_host(text) {
            return Err(bad("it begins with the registry's host, and plugins have no default registry"));
        }
        let rest = text.split_once('/').map_or("", |(_, rest)| rest);
        if !rest.contains([':', '@']) {
            return Err(bad("it ends with a tag such as :0.1.0, or with @sha256: and a digest"));
        }
        let inner: oci_client::Reference =
            text.parse().map_err(|error: oci_client::ParseError| bad(&error.to_string()))?;
        if inner.digest().is_some_and(|digest| !digest.starts_with("sha256:")) {
            return Err(bad("only sha256 digests are supported"));
        }
        Ok(Self { inner })
    }

    /// Whether `text` can be meant as a reference and not as a file: it begins with a host.
    pub(crate) fn names_host(text: &str) -> bool {
        text.split_once('/').is_some_and(|(host, _)| {
            !host.starts_with('.') && (host == "localhost" || host.contains(['.', ':']))
        })
    }

    pub(crate) fn host(&self) -> &str {
        self.inner.registry()
    }

    /// A registry on this machine.
    pub(crate) fn is_local(&self) -> bool {
        let host = self.host();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        ["localhost", "127.0.0.1", "[::1]"].contains(&name)
    }

    /// What a plugin from there is called: the last part of the repository.
    pub(crate) fn name(&self) -> &str {
        let repository = self.inner.repository();
        repository.rsplit('/').next().unwrap_or(repository)
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        self.inner.tag()
    }

    /// The digest of the manifest.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.inner.digest()
    }

    /// The same repository, by the digest of a manifest.
    pub(crate) fn at(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.host(), self.inner.repository())
    }

    pub(super) fn inner(&self) -> &oci_client::Reference {
        &self.inner
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn host_name_tag_and_digest_are_read() {
        let tagged = Reference::parse("registry.example.org/lab/math:0.1.0").unwrap();
        assert_eq!((tagged.host(), tagged.name()), ("registry.example.org", "math"));
        assert_eq!((tagged.tag(), tagged.digest(), tagged.is_local()), (Some("0.1.0"), None, false));
        let digest = format!("sha256:{}", "a".repeat(64));
        let by_digest = Reference::parse(&format!("localhost:5000/math@{digest}")).unwrap();
        assert_eq!((by_digest.tag(), by_digest.digest()), (None, Some(&*digest)));
        assert!(by_digest.is_local());
        assert!(Reference::parse("127.0.0.1:5000/a:1").unwrap().is_local());
        assert!(!Reference::parse("127.0.0.1.example.org/a:1").unwrap().is_local());
    }

    #[test]
    fn what_lacks_a_host_a_tag_or_a_good_digest_is_refused() {
        for (text, why) in [
            ("math:0.1", "host"),
            ("lab/math:0.1", "host"),
            ("./math.wasm", "host"),
            ("example.org/math", "tag"),
            ("example.org/math@sha256:abc", "invalid reference format"),
            ("example.org/Math:1", "invalid reference format"),
            ("example.org/math:", "invalid reference format"),
            ("example.org/../math:1", "invalid reference format"),
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
