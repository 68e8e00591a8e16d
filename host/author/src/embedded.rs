//! The SDKs, their templates and the contract, as they were when this binary was built.

use crate::project::{Kind, Lang};
use clap::ValueEnum;
use include_dir::{Dir, DirEntry, include_dir};
use std::path::{Path, PathBuf};

static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../sdk");
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit/0.2.0");

/// The versions of everything that Rust plugins may need, so that a project builds with what was tested here.
pub(crate) static CARGO_LOCK: &str = include_str!("../../../Cargo.lock");

/// The version of the contract that projects are made for.
pub(crate) const CONTRACT: &str = "0.2.0";

/// What a build leaves behind in a checkout.
const LEFT_BEHIND: [&str; 4] = ["target", "node_modules", "__pycache__", "molt"];

/// A file and where it goes, relative to the project.
pub(crate) type Placed = (PathBuf, &'static [u8]);

/// The files of the template, or None if the language has none for this kind.
pub(crate) fn template(kind: Kind, lang: Lang) -> Option<Vec<Placed>> {
    let root = Path::new(lang.sdk()).join(lang.templates()).join(kind.to_string());
    SDK.get_dir(&root).map(|dir| files(dir, &root, Path::new("")))
}

/// The kinds that the language has a template for.
pub(crate) fn kinds(lang: Lang) -> Vec<Kind> {
    let all = Kind::value_variants().iter().copied();
    all.filter(|kind| template(*kind, lang).is_some()).collect()
}

/// The SDK and the contract, under `molt/` as in the repository. Templates and the SDK's own README stay out.
pub(crate) fn support(lang: Lang) -> Vec<Placed> {
    let root = Path::new(lang.sdk());
    let mut all =
        SDK.get_dir(root).map_or_else(Vec::new, |dir| files(dir, root, &Path::new("molt/sdk").join(root)));
    let sdk = Path::new("molt/sdk").join(root);
    all.retain(|(path, _)| {
        let inner = path.strip_prefix(&sdk).unwrap_or(path);
        !inner.starts_with("template") && !inner.starts_with("template-ts") && inner != Path::new("README.md")
    });
    all.extend(files(&WIT, Path::new(""), &Path::new("molt/wit").join(CONTRACT)));
    all
}

/// Every file below `dir`, whose own path is `root`, moved to `to`.
fn files(dir: &'static Dir<'static>, root: &Path, to: &Path) -> Vec<Placed> {
    let mut found = Vec::new();
    for entry in dir.entries() {
        let left_behind =
            entry.path().file_name().is_some_and(|name| LEFT_BEHIND.iter().any(|left| name == *left));
        match entry {
            DirEntry::Dir(inner) if !left_behind => found.extend(files(inner, root, to)),
            DirEntry::File(file) if entry.path().extension().is_none_or(|extension| extension != "wasm") => {
                let inner = file.path().strip_prefix(root).unwrap_or(file.path());
                found.push((to.join(inner), file.contents()));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_kind_has_the_same_cases_in_every_language() {
        let cases = |kind, lang| {
            let files = template(kind, lang)?;
            files.into_iter().find(|(path, _)| path == Path::new("cases.toml")).map(|(_, contents)| contents)
        };
        for kind in [Kind::Reward, Kind::GroupReward, Kind::Environment, Kind::Estimator] {
            let expected = cases(kind, Lang::Rust).expect("Rust has an example of these kinds");
            for lang in Lang::value_variants() {
                assert!(cases(kind, *lang) == Some(expected), "{kind} in {lang}");
            }
        }
        assert!(cases(Kind::Loss, Lang::Rust).is_some());
    }

    #[test]
    fn the_kinds_to_choose_from_are_those_with_a_template() {
        for kind in Kind::value_variants() {
            let shown = kind.to_possible_value().is_some_and(|value| !value.is_hide_set());
            let langs = Lang::value_variants().iter().filter(|lang| template(*kind, **lang).is_some());
            // `new --help` says of a loss that its template is in Rust.
            let expected = if *kind == Kind::Loss { 1 } else { Lang::value_variants().len() };
            assert_eq!(langs.count(), if shown { expected } else { 0 }, "{kind}");
        }
        assert!(template(Kind::Loss, Lang::Rust).is_some());
    }

    #[test]
    fn what_goes_into_a_project_is_the_sdk_without_its_templates() {
        for lang in Lang::value_variants() {
            let files = support(*lang);
            assert!(files.iter().any(|(path, _)| path == Path::new("molt/wit/0.2.0/types.wit")), "{lang}");
            let stray = |path: &Path| {
                path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("template"))
            };
            assert!(!files.iter().any(|(path, _)| stray(path)), "{lang}");
        }
    }
}
