//! The versions of the contract, `molt:plugin`, that this host runs.

/// What a plugin may be built against, for people.
pub(crate) const SUPPORTED: &str = "0.1.x and 0.2.x";

/// The version that new plugins are built against, a folder under `wit/`.
pub(crate) const LATEST: &str = "0.2.0";

/// A minor version, whose patches differ in nothing that is called. What the older ones say is converted to
/// the latest at the boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contract {
    V0_1,
    V0_2,
}

impl Contract {
    /// The contract with this version, if the host runs it. A pre-release promises nothing.
    pub(crate) fn of(version: &str) -> Option<Self> {
        let version = semver::Version::parse(version).ok().filter(|version| version.pre.is_empty())?;
        match (version.major, version.minor) {
            (0, 1) => Some(Self::V0_1),
            (0, 2) => Some(Self::V0_2),
            _ => None,
        }
    }
}

/// What the author or the user of a plugin with another contract can do.
pub(crate) fn remedy(found: &str) -> String {
    let latest = semver::Version::parse(LATEST).ok();
    let newer = semver::Version::parse(found).ok().zip(latest).is_some_and(|(found, latest)| found > latest);
    if newer {
        format!("use a newer Molt, or build it against wit/{LATEST}")
    } else {
        format!("build it against wit/{LATEST}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_fit_and_other_versions_do_not() {
        assert_eq!(Contract::of("0.1.0"), Some(Contract::V0_1));
        assert_eq!(Contract::of("0.2.17"), Some(Contract::V0_2));
        for other in ["0.0.9", "0.3.0", "1.0.0", "1.2.0", "0.2.0-rc.1", "0.20.0", "0.2", "two", ""] {
            assert_eq!(Contract::of(other), None, "{other}");
        }
        assert_eq!(Contract::of(LATEST), Some(Contract::V0_2));
    }

    #[test]
    fn only_a_newer_contract_asks_for_a_newer_host() {
        assert!(remedy("0.3.0").contains("newer Molt"));
        assert!(remedy("1.0.0").contains("newer Molt"));
        assert_eq!(remedy("0.0.1"), "build it against wit/0.2.0");
        assert_eq!(remedy("0.2.0-rc.1"), "build it against wit/0.2.0");
    }
}
