//! No key without an effect: each is kept or refused when it is changed, and some part of the host reads it.
#![allow(clippy::unwrap_used)] // a failed set-up should stop the test where it is

use molt_core::settings::{
    ANY, EvalSettings, Key, Kind, NativeLoss, Settings, SftSettings, TrainSettings, keys, load,
};
use std::fs;
use std::path::{Path, PathBuf};

/// A value that is not the default, as a flag would give it.
fn other(kind: &Kind, default: Option<&str>) -> String {
    match kind {
        Kind::Switch => (default != Some("true")).to_string(),
        Kind::Count { .. } => (default.and_then(|d| d.parse().ok()).unwrap_or(2_u64) + 1).to_string(),
        Kind::Parameter => "0.5".into(),
        Kind::Number => (default.and_then(|d| d.parse().ok()).unwrap_or(1.0_f64) * 0.75 + 0.0625).to_string(),
        Kind::Text => "something".into(),
        Kind::Choice(words) => words.iter().find(|word| Some(word.as_str()) != default).unwrap().clone(),
        Kind::List(of) => other(of, default),
    }
}

fn changed<S: Settings + PartialEq>(key: &Key) -> bool {
    let name = key.name().replace(ANY, "some-plugin");
    let value = other(&key.kind, key.default.as_deref());
    // A refusal is an effect too; none of these values is malformed, so there should be few.
    load::<S>(None, &[(name, value)]).map_or(true, |settings| settings != S::default())
}

#[test]
fn a_key_that_is_changed_changes_the_settings() {
    let inert = |keys: Vec<Key>, changed: fn(&Key) -> bool| -> Vec<String> {
        assert!(keys.len() > 20);
        keys.iter().filter(|key| !changed(key)).map(Key::name).collect()
    };
    assert_eq!(inert(keys::<TrainSettings>(), changed::<TrainSettings>), [""; 0]);
    assert_eq!(inert(keys::<SftSettings>(), changed::<SftSettings>), [""; 0]);
    assert_eq!(inert(keys::<EvalSettings>(), changed::<EvalSettings>), [""; 0]);
}

/// The Rust files of a folder and those below, but for tests and for what only checks settings.
fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "validate", "target", "fixtures"].contains(&&*name) {
            sources(&path, all);
        } else if name.ends_with(".rs") && !["tests.rs", "validate.rs"].contains(&&*name) {
            all.push(path);
        }
    }
}

/// Whether the text says `.name`, or takes it out of a struct by `name,` or `name:`, which gives a default where settings
/// are declared.
fn reads((is_declared, text): &(bool, String), name: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + name.len()..].chars().next());
        ends(after)
            && (before == Some('.')
                || (before == Some(' ')
                    && match after {
                        Some(',' | ' ') => true,
                        Some(':') => !is_declared,
                        _ => false,
                    }))
    })
}

#[test]
fn every_key_is_read_somewhere() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for part in ["core", "sandbox", "model", "generator", "rollout", "trainer", "cli", "author"] {
        sources(&host.join(part).join("src"), &mut files);
    }
    let code = |path: &PathBuf| -> (bool, String) {
        let text = fs::read_to_string(path).unwrap();
        // Neither comments nor tests at the end of a file read anything, and a declaration does not.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = text.lines().filter(|line| {
            let line = line.trim_start();
            !line.starts_with("//") && !line.starts_with("pub ")
        });
        (path.to_string_lossy().contains("settings"), lines.collect::<Vec<_>>().join("\n"))
    };
    let texts: Vec<(bool, String)> = files.iter().map(code).collect();
    let all = [keys::<TrainSettings>(), keys::<SftSettings>(), keys::<EvalSettings>()].concat();
    let unread: Vec<String> = all
        .iter()
        .filter(|key| {
            let name = key.path.iter().rfind(|part| *part != ANY).unwrap();
            !texts.iter().any(|text| reads(text, name))
        })
        .map(Key::name)
        .collect();
    assert!(unread.is_empty(), "nothing reads {unread:?}");
}

/// ARCHITECTURE.md says of every loss, aggregation, correction and estimate of a divergence what it computes.
#[test]
fn every_choice_of_the_algorithm_is_in_a_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, section) = text.split_once("\n## Losses\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut words: Vec<String> = NativeLoss::ALL.iter().map(|loss| loss.name().to_owned()).collect();
    for key in keys::<TrainSettings>() {
        let name = key.name();
        let is_one =
            ["algo.aggregation", "algo.correction.level", "algo.correction.mode"].contains(&name.as_str());
        if let (true, Kind::Choice(choices)) = (is_one, key.kind) {
            words.extend(choices);
        }
    }
    assert_eq!(words.len(), 4 + 4 + 4 + 3, "{words:?}");
    words.extend(["k1", "k2", "k3"].map(String::from));
    let missing: Vec<&String> = words.iter().filter(|word| !section.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "nothing is said of {missing:?}");
    for loss in NativeLoss::ALL {
        let row = section.lines().find(|line| line.starts_with(&format!("| `{}` |", loss.name()))).unwrap();
        for bound in [loss.clip_low(), loss.clip_high()].into_iter().flatten() {
            assert!(row.contains(&bound.to_string()), "the bound of {} is {bound}: {row}", loss.name());
        }
    }
}
