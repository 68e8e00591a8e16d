//! Advisories in the TOML of the RustSec database, one file each.

use anyhow::{Context, Result, bail};
use semver::{Version, VersionReq};
use std::fs;
use std::path::{Path, PathBuf};
use time::{Date, Month};
use toml::{Table, Value};

/// The format of `taken.toml` that is understood.
const FORMAT: i64 = 1;

/// All that were taken.
#[derive(Debug)]
pub(super) struct Advisories {
    /// The day on which they were taken.
    pub(super) taken: Date,
    pub(super) list: Vec<Advisory>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Advisory {
    pub(super) id: String,
    package: String,
    date: Date,
    patched: Vec<VersionReq>,
    unaffected: Vec<VersionReq>,
}

impl Advisories {
    /// Reads `taken.toml` and every other `.toml` in `folder` and the folders in it.
    ///
    /// # Errors
    /// A file that is not understood; a review that is due.
    pub(super) fn read(folder: &Path, today: Date) -> Result<Self> {
        let path = folder.join("taken.toml");
        let taken = dates(&path, today).with_context(|| path.display().to_string())?;
        let mut list = Vec::new();
        for file in files(folder)? {
            if file != path {
                let text =
                    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
                let advisory = Advisory::parse(&text).with_context(|| file.display().to_string())?;
                if file.file_stem().is_none_or(|stem| stem != advisory.id.as_str()) {
                    bail!("{} holds {}", file.display(), advisory.id);
                }
                list.push(advisory);
            }
        }
        if list.is_empty() {
            bail!("{} holds no advisory", folder.display());
        }
        Ok(Self { taken, list })
    }

    /// Those that hold for a package.
    pub(super) fn against(&self, package: &str, version: &Version) -> impl Iterator<Item = &Advisory> {
        self.list.iter().filter(move |advisory| {
            let beyond = |ranges: &[VersionReq]| ranges.iter().any(|range| range.matches(version));
            advisory.package == package && !beyond(&advisory.patched) && !beyond(&advisory.unaffected)
        })
    }
}

impl Advisory {
    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("not TOML")?;
        let part =
            |name: &str| table.get(name).and_then(Value::as_table).with_context(|| format!("no [{name}]"));
        let (advisory, versions) = (part("advisory")?, part("versions")?);
        let text = |key: &str| {
            advisory.get(key).and_then(Value::as_str).with_context(|| format!("no advisory.{key}"))
        };
        let id = text("id")?.to_owned();
        if !id.starts_with("RUSTSEC-") {
            bail!("the id is {id}, expected RUSTSEC-…");
        }
        if advisory.contains_key("withdrawn") {
            bail!("{id} was withdrawn: remove the file");
        }
        let ranges = |key: &str| -> Result<Vec<VersionReq>> {
            let Some(value) = versions.get(key) else { return Ok(Vec::new()) };
            let list = value.as_array().with_context(|| format!("versions.{key} is no list"))?;
            list.iter().map(|range| Ok(VersionReq::parse(range.as_str().context("no text")?)?)).collect()
        };
        // An advisory without a patched version has an empty list; one without the list is of another format.
        if !versions.contains_key("patched") {
            bail!("no versions.patched");
        }
        Ok(Self {
            package: text("package")?.to_owned(),
            date: date(text("date")?)?,
            patched: ranges("patched").context("versions.patched")?,
            unaffected: ranges("unaffected").context("versions.unaffected")?,
            id,
        })
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        let ranges: Vec<String> = self.patched.iter().map(VersionReq::to_string).collect();
        let patched =
            if ranges.is_empty() { "in no version".into() } else { format!("in {}", ranges.join(" or ")) };
        format!("{} of {}, patched {patched}", self.id, self.date)
    }
}

/// When they were taken, if that is recent enough.
fn dates(path: &Path, today: Date) -> Result<Date> {
    let table: Table = fs::read_to_string(path).context("cannot be read")?.parse().context("not TOML")?;
    match table.get("format").and_then(Value::as_integer) {
        Some(FORMAT) => {}
        found => bail!("the format is {found:?}, expected {FORMAT}"),
    }
    let day = |key: &str| date(table.get(key).and_then(Value::as_str).with_context(|| format!("no {key}"))?);
    let (taken, review_by) = (day("taken")?, day("review_by")?);
    if today > review_by {
        bail!("the advisories were taken on {taken}, to be reviewed by {review_by}: look for newer ones");
    }
    Ok(taken)
}

/// Reads `2026-11-29`.
fn date(text: &str) -> Result<Date> {
    let parts: Vec<&str> = text.split('-').collect();
    let read = || match parts[..] {
        [year, month, day] => {
            let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
            Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()
        }
        _ => None,
    };
    read().with_context(|| format!("{text:?} is no date"))
}

/// Every `.toml` in `folder` and the folders in it, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                found.push(path);
            } else {
                bail!("{} is no advisory", path.display());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::date;

    const GOOD: &str = "[advisory]\nid = \"RUSTSEC-2026-0099\"\npackage = \"rustls-webpki\"\ndate = \"2026-04-14\"\n\
                        [versions]\npatched = [\">= 0.103.12, < 0.104.0-alpha.1\", \">= 0.104.0-alpha.6\"]\n";

    #[test]
    fn the_ranges_are_those_of_cargo() {
        let advisories =
            Advisories { taken: date!(2026 - 11 - 29), list: vec![Advisory::parse(GOOD).expect("good")] };
        let hit = |package: &str, version: &str| {
            advisories.against(package, &Version::parse(version).expect("a version")).count()
        };
        for version in ["0.103.11", "0.101.0", "0.104.0-alpha.5"] {
            assert_eq!(hit("rustls-webpki", version), 1, "{version}");
        }
        for version in ["0.103.12", "0.103.17", "0.104.0-alpha.6", "0.104.0", "1.0.0"] {
            assert_eq!(hit("rustls-webpki", version), 0, "{version}");
        }
        assert_eq!(hit("webpki", "0.1.0"), 0);
    }

    #[test]
    fn another_format_a_withdrawn_advisory_and_a_bad_range_are_errors() {
        for (from, to) in [
            ("id = \"RUSTSEC", "id = \"CVE"),
            ("package", "crate"),
            ("2026-04-14", "April"),
            ("[versions]", "[ranges]"),
            ("patched", "fixed"),
            (">= 0.103.12", "newer than 0.103.12"),
            ("date", "withdrawn = \"2026-05-01\"\ndate"),
            ("[advisory]", "{"),
        ] {
            assert!(Advisory::parse(&GOOD.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_folder_that_is_out_of_date_empty_or_of_another_format_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("writable");
        let read = |today| Advisories::read(folder.path(), today);
        let day = date!(2027 - 11 - 29);
        assert!(read(day).is_err(), "no taken.toml");
        let taken = "format = 1\ntaken = \"2026-11-29\"\nreview_by = \"2027-11-29\"\n";
        write("taken.toml", taken);
        assert!(read(day).is_err(), "no advisory");
        write("RUSTSEC-2026-0099.toml", GOOD);
        assert_eq!(read(day).expect("good").taken, date!(2026 - 11 - 29));
        let late = format!("{:#}", read(date!(2027 - 11 - 30)).expect_err("too late"));
        assert!(late.contains("to be reviewed by 2027-11-29"), "{late}");
        write("taken.toml", &taken.replace("format = 1", "format = 2"));
        assert!(read(day).is_err(), "another format");
        write("taken.toml", taken);
        write("RUSTSEC-2026-0100.toml", GOOD);
        assert!(read(day).is_err(), "the name of another advisory");
    }
}
