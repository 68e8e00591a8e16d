//! `audit/policy.toml`.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// What is permitted.
#[derive(Debug)]
pub(super) struct Policy {
    /// SHA-256 of the one source of packages, as `Cargo.lock` writes it.
    pub(super) source_sha256: String,
    /// Licences, and licences WITH an exception.
    pub(super) licences: BTreeSet<String>,
    /// Packages that must not come in, and why.
    pub(super) banned: BTreeMap<String, String>,
    /// Advisories that are borne, and why.
    pub(super) accepted: BTreeMap<String, String>,
    /// Packages that may come in several versions.
    pub(super) duplicates: BTreeSet<String>,
}

impl Policy {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("not TOML")?;
        let known = ["source_sha256", "licences", "banned", "accepted", "duplicates"];
        if let Some(stray) = table.keys().find(|key| !known.contains(&key.as_str())) {
            bail!("unknown key {stray}");
        }
        let part =
            |name: &str| table.get(name).and_then(Value::as_table).with_context(|| format!("no [{name}]"));
        let reasons = |name: &str| -> Result<BTreeMap<String, String>> {
            let reason = |(key, why): (&String, &Value)| {
                let why = why.as_str().filter(|why| !why.is_empty());
                Ok((key.clone(), why.with_context(|| format!("{name}.{key} says no reason"))?.to_owned()))
            };
            part(name)?.iter().map(reason).collect()
        };
        let allowed = |name: &str| -> Result<BTreeSet<String>> {
            let list = part(name)?.get("allowed").and_then(Value::as_array);
            let list = list.with_context(|| format!("no {name}.allowed"))?;
            let text = |value: &Value| value.as_str().map(str::to_owned).context("not text");
            list.iter().map(text).collect::<Result<_>>().with_context(|| format!("{name}.allowed"))
        };
        let source = table.get("source_sha256").and_then(Value::as_str).context("no source_sha256")?;
        Ok(Self {
            source_sha256: source.to_owned(),
            licences: allowed("licences")?,
            banned: reasons("banned")?,
            accepted: reasons("accepted")?,
            duplicates: allowed("duplicates")?,
        })
    }
}
