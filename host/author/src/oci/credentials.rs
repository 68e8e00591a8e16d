//! Accounts at registries, as `docker login` leaves them in its configuration file.

use super::RegistryError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

/// The part of the file that is of interest.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Debug, Default, Deserialize)]
struct Entry {
    /// `user:password` in base64.
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// The account at `host`, or none.
pub(super) fn of(host: &str) -> Result<RegistryAuth, RegistryError> {
    let dir = env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    match dir.or_else(|| env::home_dir().map(|home| home.join(".docker"))) {
        Some(dir) => in_file(&dir.join("config.json"), host),
        None => Ok(RegistryAuth::Anonymous),
    }
}

fn in_file(path: &Path, host: &str) -> Result<RegistryAuth, RegistryError> {
    let bad = |source| RegistryError::Credentials { path: path.to_owned(), source };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(RegistryAuth::Anonymous),
        Err(error) => return Err(bad(error.into())),
    };
    let config: Config = serde_json::from_str(&text).map_err(|error| bad(error.into()))?;
    let Some((_, entry)) = config.auths.into_iter().find(|(key, _)| host_of(key) == host) else {
        return Ok(RegistryAuth::Anonymous);
    };
    if let (Some(username), Some(password)) = (entry.username, entry.password) {
        return Ok(RegistryAuth::Basic(username, password));
    }
    // An empty entry: the account is with a credential helper.
    let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) else { return Ok(RegistryAuth::Anonymous) };
    let decoded = STANDARD.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some((username, password)) = decoded.as_deref().and_then(|text| text.split_once(':')) else {
        return Err(bad(format!("the entry of {host} is not user:password in base64").into()));
    };
    Ok(RegistryAuth::Basic(username.to_owned(), password.to_owned()))
}

/// Keys are hosts; some clients write whole addresses.
fn host_of(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn an_account_is_found_by_its_host_and_only_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let read = |text: &str, host: &str| {
            std::fs::write(&path, text).unwrap();
            in_file(&path, host)
        };
        // "ada:love:lace" in base64 (RFC 4648): the password may hold a colon.
        let config = r#"{"auths": {"https://a.example/v1/": {"auth": "YWRhOmxvdmU6bGFjZQ=="},
            "b.example:5000": {"username": "bob", "password": "pw"}, "c.example": {}}, "credsStore": "x"}"#;
        let basic = |name: &str, word: &str| RegistryAuth::Basic(name.into(), word.into());
        assert_eq!(read(config, "a.example").unwrap(), basic("ada", "love:lace"));
        assert_eq!(read(config, "b.example:5000").unwrap(), basic("bob", "pw"));
        for host in ["c.example", "b.example", "example"] {
            assert_eq!(read(config, host).unwrap(), RegistryAuth::Anonymous, "{host}");
        }
        assert_eq!(in_file(&dir.path().join("none"), "a").unwrap(), RegistryAuth::Anonymous);
    }

    #[test]
    fn a_damaged_file_is_told_without_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        for text in [
            "{",
            r#"{"auths": {"a.example": {"auth": "c2VjcmV0"}}}"#,
            r#"{"auths": {"a.example": {"auth": "%"}}}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            let error = in_file(&path, "a.example").unwrap_err();
            let told = crate::error::chain(&error).join(": ");
            assert!(
                told.contains("config.json") && !told.contains("secret") && !told.contains("c2Vj"),
                "{told}"
            );
        }
    }
}
