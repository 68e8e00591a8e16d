//! The tree of dependencies against what the repository permits: licences, sources, checksums, banned and
//! duplicate packages, and known advisories. Everything it goes by lies in `audit/`; nothing is fetched.

mod advisory;
mod licence;
mod policy;

use crate::{fetch, process};
use advisory::Advisories;
use anyhow::{Context, Result, bail};
use policy::Policy;
use semver::Version;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use time::OffsetDateTime;
use toml::Table;

/// The format of `Cargo.lock` that is understood.
const LOCK_FORMAT: i64 = 4;

/// The platform whose packages are built, and so have their licences read.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Prints what was looked at; every finding is part of the error.
pub(crate) fn audit() -> Result<()> {
    let root = process::workspace_root();
    let today = OffsetDateTime::now_utc().date();
    let policy = Policy::read(&root.join("audit/policy.toml"))?;
    let advisories = Advisories::read(&root.join("audit/advisories"), today)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let packages = packages(&lock)?;
    let metadata = process::output(&mut process::cargo([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform",
        PLATFORM,
    ]))?;
    let licences = licences(&metadata, &root)?;
    let mut findings = examine(&packages, &policy, &advisories);
    findings.extend(unlicensed(&licences, &policy));
    report(&findings)?;
    println!(
        "{} packages, {} licences read, {} advisories of {}: nothing found",
        packages.len(),
        licences.len(),
        advisories.list.len(),
        advisories.taken
    );
    Ok(())
}

fn report(findings: &[String]) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!("the audit found {}:\n  {}", findings.len(), findings.join("\n  "))
}

/// One entry of `Cargo.lock`.
#[derive(Debug)]
struct Package {
    name: String,
    version: Version,
    /// None: part of this repository.
    source: Option<String>,
    checksum: Option<String>,
}

/// The entries of a lock file.
fn packages(lock: &str) -> Result<Vec<Package>> {
    let lock: Table = lock.parse().context("Cargo.lock is not TOML")?;
    match lock.get("version").and_then(toml::Value::as_integer) {
        Some(LOCK_FORMAT) => {}
        found => bail!("Cargo.lock has format {found:?}; the audit reads format {LOCK_FORMAT}"),
    }
    let list = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock has no packages")?;
    list.iter().map(package).collect()
}

fn package(entry: &toml::Value) -> Result<Package> {
    let text = |key: &str| entry.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let name = text("name").context("a package in Cargo.lock has no name")?;
    let version = text("version").with_context(|| format!("{name} in Cargo.lock has no version"))?;
    let version = Version::parse(&version).with_context(|| format!("{name} has the version {version:?}"))?;
    Ok(Package { name, version, source: text("source"), checksum: text("checksum") })
}

/// What is wrong with the packages of a lock file.
fn examine(packages: &[Package], policy: &Policy, advisories: &Advisories) -> Vec<String> {
    let mut findings = Vec::new();
    for package in packages {
        let label = format!("{} {}", package.name, package.version);
        if let Some(source) = &package.source {
            if fetch::hex(&Sha256::digest(source)) != policy.source_sha256 {
                findings.push(format!("{label} comes from {source}, which is not the Rust registry"));
            }
            let whole = |sum: &String| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !package.checksum.as_ref().is_some_and(whole) {
                findings.push(format!("{label} has no checksum in Cargo.lock"));
            }
        }
        if let Some(why) = policy.banned.get(&package.name) {
            findings.push(format!("{label} is banned: {why}"));
        }
        for advisory in advisories.against(&package.name, &package.version) {
            if !policy.accepted.contains_key(&advisory.id) {
                findings.push(format!("{label} is affected by {}", advisory.told()));
            }
        }
    }
    findings.extend(duplicates(packages, &policy.duplicates));
    for id in policy.accepted.keys() {
        let holds = |package: &Package| {
            advisories.against(&package.name, &package.version).any(|advisory| &advisory.id == id)
        };
        if !packages.iter().any(holds) {
            findings
                .push(format!("{id} is accepted in audit/policy.toml and holds for no package: strike it"));
        }
    }
    findings
}

/// Packages in several versions that may not be, and permissions that nothing needs any more.
fn duplicates(packages: &[Package], permitted: &BTreeSet<String>) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(package.version.to_string());
    }
    versions.retain(|_, list| list.len() > 1);
    let unexpected = versions.iter().filter(|(name, _)| !permitted.contains(**name)).map(|(name, list)| {
        format!(
            "{name} comes in versions {}: settle on one, or permit it in audit/policy.toml",
            list.join(", ")
        )
    });
    let stale = permitted.iter().filter(|name| !versions.contains_key(name.as_str())).map(|name| {
        format!("{name} is permitted in several versions in audit/policy.toml and has one: strike it")
    });
    unexpected.chain(stale).collect()
}

/// Name with version, and the licence that its manifest states, of every package that is built.
///
/// # Errors
/// Output of cargo that cannot be understood; a package without a source that is not in this repository.
fn licences(metadata: &str, root: &Path) -> Result<Vec<(String, Option<String>)>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let nodes = metadata.pointer("/resolve/nodes").and_then(Value::as_array);
    let nodes = nodes.context("cargo metadata printed no resolved packages")?;
    let built: BTreeSet<&str> = nodes.iter().filter_map(|node| node.get("id")?.as_str()).collect();
    let list =
        metadata.get("packages").and_then(Value::as_array).context("cargo metadata printed no packages")?;
    let mut licences = Vec::new();
    for package in list {
        let text = |key: &str| package.get(key).and_then(Value::as_str);
        let (Some(id), Some(name), Some(version)) = (text("id"), text("name"), text("version")) else {
            bail!("cargo metadata printed a package without id, name and version");
        };
        if !built.contains(id) {
            continue;
        }
        if text("source").is_none()
            && !text("manifest_path").is_some_and(|path| Path::new(path).starts_with(root))
        {
            bail!("{name} {version} lies outside this repository");
        }
        licences.push((format!("{name} {version}"), text("license").map(str::to_owned)));
    }
    Ok(licences)
}

fn unlicensed(licences: &[(String, Option<String>)], policy: &Policy) -> Vec<String> {
    let finding = |(label, licence): &(String, Option<String>)| match licence {
        None => Some(format!("{label} states no licence")),
        Some(text) => match licence::permitted(text, &policy.licences) {
            Ok(true) => None,
            Ok(false) => {
                Some(format!("{label} has the licence {text}, which audit/policy.toml does not allow"))
            }
            Err(why) => Some(format!("{label} has the licence {text:?}, which cannot be read: {why}")),
        },
    };
    licences.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::date;

    const SOURCE: &str = "registry+https://index.example";

    fn policy() -> Policy {
        let text = format!(
            "source_sha256 = \"{}\"\n[licences]\nallowed = [\"MIT\"]\n[banned]\nopenssl = \"no\"\n[accepted]\n\
             [duplicates]\nallowed = [\"twice\"]\n",
            fetch::hex(&Sha256::digest(SOURCE))
        );
        Policy::parse(&text).expect("well-formed")
    }

    fn advisories() -> Advisories {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writable");
        write("taken.toml", "format = 1\ntaken = \"2026-11-29\"\nreview_by = \"2027-11-29\"\n");
        write(
            "RUSTSEC-2026-0327.toml",
            "[advisory]\nid = \"RUSTSEC-2026-0327\"\npackage = \"wasmtime\"\ndate = \"2026-10-02\"\n\
             [versions]\npatched = [\">= 48.0.4, < 49.0.0\", \">= 49.0.2\"]\nunaffected = [\"< 39.0.0\"]\n",
        );
        Advisories::read(folder.path(), date!(2026 - 12 - 01)).expect("well-formed")
    }

    fn lock(entries: &[(&str, &str, &str, bool)]) -> String {
        let entry = |(name, version, source, summed): &(&str, &str, &str, bool)| {
            let sum = if *summed { format!("checksum = \"{}\"\n", "a".repeat(64)) } else { String::new() };
            let source = if source.is_empty() { String::new() } else { format!("source = \"{source}\"\n") };
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{source}{sum}")
        };
        format!("version = 4\n{}", entries.iter().map(entry).collect::<String>())
    }

    fn found(entries: &[(&str, &str, &str, bool)]) -> Vec<String> {
        examine(&packages(&lock(entries)).expect("well-formed"), &policy(), &advisories())
    }

    const GOOD: [(&str, &str, &str, bool); 5] = [
        ("ours", "0.1.0", "", false),
        ("wasmtime", "48.0.8", SOURCE, true),
        ("twice", "1.0.0", SOURCE, true),
        ("twice", "2.0.0", SOURCE, true),
        ("zstd-sys", "2.1.3+zstd.1.5.7", SOURCE, true),
    ];

    #[test]
    fn a_good_tree_has_no_findings() {
        assert_eq!(found(&GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_tree_is_found() {
        for (fault, expected) in [
            (("wasmtime", "48.0.3", SOURCE, true), "wasmtime 48.0.3 is affected by RUSTSEC-2026-0327"),
            (("wasmtime", "49.0.1", SOURCE, true), "patched in >=48.0.4, <49.0.0 or >=49.0.2"),
            (("openssl", "0.10.0", SOURCE, true), "openssl 0.10.0 is banned: no"),
            (("fork", "1.0.0", "git+https://example.org/fork#1", false), "which is not the Rust registry"),
            (("mirror", "1.0.0", "registry+https://index.example2", true), "which is not the Rust registry"),
            (("unsummed", "1.0.0", SOURCE, false), "unsummed 1.0.0 has no checksum"),
            (("ours", "0.2.0", "", false), "ours comes in versions 0.1.0, 0.2.0"),
        ] {
            let findings = found(&[&GOOD[..], &[fault]].concat());
            assert!(findings.iter().any(|finding| finding.contains(expected)), "{expected}: {findings:?}");
            assert!(report(&findings).is_err());
        }
        let stale = found(&GOOD[..3]);
        assert!(stale.iter().any(|finding| finding.contains("twice is permitted")), "{stale:?}");
    }

    #[test]
    fn an_accepted_advisory_is_no_finding_until_it_holds_no_more() {
        let mut policy = policy();
        policy.accepted.insert("RUSTSEC-2026-0327".into(), "a test".into());
        let examine = |version| {
            let entries = [&[("wasmtime", version, SOURCE, true)][..], &GOOD[2..4]].concat();
            examine(&packages(&lock(&entries)).expect("well-formed"), &policy, &advisories())
        };
        assert_eq!(examine("48.0.3"), Vec::<String>::new());
        assert!(examine("48.0.8")[0].contains("strike it"));
    }

    #[test]
    fn a_lock_file_of_an_unknown_format_is_an_error() {
        for text in ["version = 5\n[[package]]\n", "[[package]]\nname = \"a\"\n", "version = 4\n", "{"] {
            assert!(packages(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn licences_are_read_of_what_is_built_and_judged() {
        let metadata = r#"{"packages": [
            {"id": "a", "name": "a", "version": "1.0.0", "source": "s", "license": "MIT OR GPL-3.0"},
            {"id": "b", "name": "b", "version": "1.0.0", "source": "s", "license": "GPL-3.0"},
            {"id": "c", "name": "c", "version": "1.0.0", "source": "s"},
            {"id": "d", "name": "d", "version": "1.0.0", "source": "s", "license": "of my own"},
            {"id": "w", "name": "w", "version": "1.0.0", "source": "s", "license": "GPL-3.0"},
            {"id": "m", "name": "m", "version": "0.1.0", "manifest_path": "/r/m/Cargo.toml", "license": "MIT"}],
            "resolve": {"nodes": [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}, {"id": "m"}]}}"#;
        let licences = licences(metadata, Path::new("/r")).expect("well-formed");
        assert_eq!(licences.len(), 5, "w is not built here");
        let findings = unlicensed(&licences, &policy());
        assert_eq!(findings.len(), 3, "{findings:?}");
        for (finding, part) in
            findings.iter().zip(["b 1.0.0 has the licence GPL-3.0", "c 1.0.0 states no", "d 1.0.0"])
        {
            assert!(finding.contains(part), "{finding}");
        }
        assert!(super::licences(metadata, Path::new("/elsewhere")).is_err());
        assert!(super::licences("{}", Path::new("/r")).is_err());
    }

    #[test]
    fn the_repository_has_what_the_audit_goes_by() {
        let audit = process::workspace_root().join("audit");
        Policy::read(&audit.join("policy.toml")).expect("well-formed");
        let advisories =
            Advisories::read(&audit.join("advisories"), date!(2026 - 11 - 30)).expect("well-formed");
        assert!(advisories.list.len() >= 50, "{}", advisories.list.len());
    }
}
