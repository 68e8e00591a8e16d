//! Checkpoints: directories with all that a run needs to go on, whole or not there at all.
//!
//! `checkpoints/step-000010/` holds `checkpoint.json`, which names every other file with its digest, and its own; a part of
//! every rank; `state`, where the loop is; and the exported model, if that is asked for. It is written under another name, flushed, and renamed.

mod manifest;
mod write;

pub(crate) use manifest::hexadecimal;
pub use manifest::{Identity, digest_of};
pub(crate) use write::Checkpoints;

use crate::error::TrainError;
use crate::step::Learner;
use crate::step::part::{digest, file_name};
use manifest::Manifest;
use molt_core::settings;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FOLDER: &str = "checkpoints";
const MANIFEST: &str = "checkpoint.json";
const STATE: &str = "state";
const MODEL: &str = "model";
/// Where the parts of the critic are.
const CRITIC: &str = "critic";

/// A checkpoint whose files are whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    dir: PathBuf,
    manifest: Manifest,
}

/// What there is to go on from.
#[derive(Debug, Default)]
pub struct Found {
    /// The last good one.
    pub checkpoint: Option<Checkpoint>,
    /// Later ones that cannot be used, and why.
    pub skipped: Vec<(PathBuf, String)>,
}

/// Settings that say which weights a run has that it does not train.
const OF_MODELS: [&str; 8] = [
    "model.path",
    "reference.model",
    "teacher.model",
    "algo.estimator",
    "critic.model",
    "critic.optim.freeze",
    "optim.freeze",
    "lora.",
];

impl Checkpoint {
    /// The last good checkpoint of a run directory, or the one that `path` is.
    ///
    /// # Errors
    /// If `path` is a checkpoint that cannot be used, or cannot be read.
    pub fn find(path: &Path) -> Result<Found, TrainError> {
        if path.join(MANIFEST).exists() {
            let opened = Self::open(path);
            let checkpoint =
                opened.map_err(|reason| TrainError::Checkpoint { path: path.to_owned(), reason })?;
            return Ok(Found { checkpoint: Some(checkpoint), skipped: vec![] });
        }
        let mut found = Found::default();
        let all = list(&path.join(FOLDER));
        let all =
            all.map_err(|error| TrainError::Checkpoint { path: path.to_owned(), reason: error.to_string() })?;
        for (_, dir) in all.into_iter().rev() {
            match Self::open(&dir) {
                Ok(checkpoint) => {
                    found.checkpoint = Some(checkpoint);
                    break;
                }
                Err(reason) => found.skipped.push((dir, reason)),
            }
        }
        Ok(found)
    }

    /// Reads a checkpoint and every file of it.
    fn open(dir: &Path) -> Result<Self, String> {
        let text = fs::read(dir.join(MANIFEST)).map_err(|error| format!("{MANIFEST}: {error}"))?;
        let manifest = Manifest::open(&text)?;
        if !manifest.mesh.divides() {
            return Err(format!("{MANIFEST} is damaged: its ranks do not divide"));
        }
        let folders = std::iter::once("").chain(manifest.critic.iter().map(|_| CRITIC));
        let parts = folders.flat_map(|folder| part_names(folder, manifest.mesh.ranks));
        let needed = parts.chain([STATE.to_owned()]).find(|name| !manifest.files.contains_key(name));
        if let Some(name) = needed {
            return Err(format!("{MANIFEST} does not name {name}"));
        }
        for (name, expected) in &manifest.files {
            let found = digest(&dir.join(name)).map_err(|error| format!("{name}: {error}"))?;
            if hexadecimal(&found) != *expected {
                return Err(format!("{name} is damaged: it is not what was written"));
            }
        }
        Ok(Self { dir: dir.to_owned(), manifest })
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The step after which it was written.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Whether a model with parameters of these shapes can go on from it, with a critic or without.
    ///
    /// # Errors
    /// The first parameter that it holds and the model has not; or one of the two has a critic.
    pub fn fits(&self, shapes: &BTreeMap<String, Vec<i64>>, has_critic: bool) -> Result<(), TrainError> {
        if self.manifest.critic.is_some() != has_critic {
            let reason = match has_critic {
                true => "it has no critic, and this run trains one: take an algo.estimator that needs none",
                false => "it has a critic, and this run trains none: take an algo.estimator that needs one",
            };
            return Err(TrainError::Checkpoint { path: self.dir.clone(), reason: reason.to_owned() });
        }
        let other =
            self.manifest.policy.parameters.iter().find(|(name, shape)| shapes.get(*name) != Some(shape));
        other.map_or(Ok(()), |(name, had)| {
            let has = shapes.get(name).map_or("not there".to_owned(), |shape| format!("{shape:?}"));
            let reason = format!("of another model: {name} was {had:?} and is {has}");
            Err(TrainError::Checkpoint { path: self.dir.clone(), reason })
        })
    }

    /// What was other in the run that wrote it, for people.
    ///
    /// # Errors
    /// If a run of `now` cannot go on from it.
    pub fn differences(
        &self,
        now: &Identity,
        settings: &impl settings::Settings,
    ) -> Result<Vec<String>, TrainError> {
        let refused = |reason: String| TrainError::Checkpoint { path: self.dir.clone(), reason };
        let before = &self.manifest.of;
        if before.command != now.command {
            return Err(refused(format!("it is of `molt {}`", before.command)));
        }
        if before.data != now.data {
            return Err(refused(
                "the data has changed since, so it is not known what was trained".to_owned(),
            ));
        }
        let changes = settings::changes(settings, &before.settings)
            .map_err(|error| refused(format!("its settings are damaged: {error}")))?;
        if before.frozen != now.frozen {
            let of_models = |change: &&settings::Change| match change.key.as_str() {
                // Whether there is a reference, and not how much it counts.
                "algo.kl.coef" => [&change.before, &change.now].iter().any(|coef| coef.parse() == Ok(0.0)),
                key => OF_MODELS.iter().any(|of_models| key.starts_with(of_models)),
            };
            let changed = changes.iter().filter(of_models);
            let changed: Vec<String> = changed
                .map(|change| format!("{} was {} and is {}", change.key, change.before, change.now))
                .collect();
            let why = match changed.is_empty() {
                true => "their files have changed; go on with those that it began with".to_owned(),
                false => format!("{}; set them as they were", changed.join(", ")),
            };
            return Err(refused(format!(
                "the weights that are not trained, such as those of a reference or teacher, are others than it began with: \
                 {why}"
            )));
        }
        if let Some(fixed) = changes.iter().find(|change| change.is_fixed) {
            let settings::Change { key, before, now, .. } = fixed;
            return Err(refused(format!(
                "{key} was {before} and is {now}; a run goes on with what it began with"
            )));
        }
        let changed =
            changes.into_iter().map(|change| format!("{}: {} -> {}", change.key, change.before, change.now));
        let plugins = (before.components != now.components)
            .then(|| "plugins: others than before, see components.json".to_owned());
        Ok(changed.chain(plugins).collect())
    }

    /// Puts the weights and the optimisers of the policy, and of the critic if there is one, where they were, and gives
    /// back where the loop was.
    ///
    /// # Errors
    /// If it is of other models, or cannot be read.
    pub(crate) fn restore<T: DeserializeOwned>(
        &self,
        (policy, critic): (&mut Learner, Option<&mut Learner>),
    ) -> Result<T, TrainError> {
        let refused = |reason: String| TrainError::Checkpoint { path: self.dir.clone(), reason };
        let Manifest { mesh, policy: of_policy, critic: of_critic, .. } = &self.manifest;
        of_policy.is_of(policy).map_err(refused)?;
        let critic = match (of_critic, critic) {
            (None, None) => None,
            (Some(had), Some(critic)) => {
                had.is_of(critic).map_err(|reason| refused(format!("its critic is {reason}")))?;
                Some((had, critic))
            }
            // Whoever goes on has asked whether it fits.
            _ => return Err(refused("one of the two runs has a critic".to_owned())),
        };
        policy.restore(&self.dir, *mesh, of_policy.updates)?;
        if let Some((had, critic)) = critic {
            critic.restore(&self.dir.join(CRITIC), *mesh, had.updates)?;
        }
        let state = fs::read(self.dir.join(STATE)).map_err(|error| refused(format!("{STATE}: {error}")))?;
        postcard::from_bytes(&state).map_err(|error| refused(format!("{STATE} is damaged: {error}")))
    }
}

/// The files of all ranks' parts in a folder of the checkpoint, or in itself if that is empty.
fn part_names(folder: &str, ranks: usize) -> impl Iterator<Item = String> {
    (0..ranks).map(move |rank| match folder {
        "" => file_name(rank, ranks),
        folder => format!("{folder}/{}", file_name(rank, ranks)),
    })
}

/// Where a run begins.
#[derive(Debug, Default)]
pub struct From {
    /// None at the beginning.
    pub checkpoint: Option<Checkpoint>,
    pub identity: Identity,
}

/// The checkpoints in a folder, by ascending step. None if there is no such folder.
fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let step =
            name.to_str().and_then(|name| name.strip_prefix("step-")).and_then(|step| step.parse().ok());
        all.extend(step.map(|step: u64| (step, entry.path())));
    }
    all.sort_unstable();
    Ok(all)
}

/// The files below a directory, as paths from there.
fn files_below(dir: &Path) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidFilename)?;
        match entry.file_type()?.is_dir() {
            true => {
                all.extend(files_below(&entry.path())?.into_iter().map(|inner| format!("{name}/{inner}")))
            }
            false => all.push(name),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::manifest::UNKNOWN;
    use super::*;
    use crate::step::tests::{alone, decoder, layout};
    use molt_core::settings::Ckpt;

    /// A checkpoint of a small policy and a critic, with the model, in a run directory.
    fn written(run: &Path) -> PathBuf {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo/model");
        let settings = Ckpt { every: Some(1), export: true, ..Ckpt::default() };
        let model = settings::Model { path: source.into(), ..settings::Model::default() };
        let of =
            Identity { command: "train".to_owned(), settings: UNKNOWN.to_owned(), ..Identity::default() };
        let mut checkpoints = Checkpoints::new(run, (&settings, &model), of, 0);
        let (mut policy, mut critic) = (alone(decoder("0.3"), layout(40)), alone(decoder("0.2"), layout(40)));
        checkpoints.save((&mut policy, Some(&mut critic)), 1, &"here").expect("room");
        run.join("checkpoints/step-000001")
    }

    #[test]
    fn other_weights_beside_the_trained_ones_are_told_with_the_setting_that_brings_them() {
        let run = tempfile::tempdir().expect("a directory");
        let settings = |coef: f64, lr: f64| {
            let mut settings = settings::TrainSettings::default();
            (settings.algo.kl.coef, settings.optim.lr) = (coef, lr);
            settings
        };
        let of = |settings: &settings::TrainSettings, frozen: &str| {
            let settings = settings::Settings::to_toml(settings).expect("TOML");
            Identity { command: "train".to_owned(), settings, ..Identity::default() }.over(frozen)
        };
        let before = settings(0.1, 0.5);
        written(run.path());
        let found = Checkpoint::find(run.path()).expect("it can be read");
        let mut checkpoint = found.checkpoint.expect("a good one");
        checkpoint.manifest.of = of(&before, "a");
        let told = |now: &settings::TrainSettings, frozen: &str| {
            checkpoint.differences(&of(now, frozen), now).expect_err("it cannot go on").to_string()
        };
        let none = told(&settings(0.0, 0.5), "b");
        assert!(none.contains("algo.kl.coef was 0.1 and is 0.0; set them as they were"), "{none}");
        let files = told(&settings(0.2, 0.25), "b");
        assert!(files.contains("their files have changed"), "{files}");
        let same = checkpoint.differences(&of(&settings(0.2, 0.5), "a"), &settings(0.2, 0.5));
        assert_eq!(same.expect("it goes on"), ["algo.kl.coef: 0.1 -> 0.2"]);
    }

    #[test]
    fn a_bit_that_flips_in_any_file_is_seen() {
        let run = tempfile::tempdir().expect("a directory");
        let dir = written(run.path());
        let found = || Checkpoint::find(run.path()).expect("it can be read");
        assert_eq!(found().checkpoint.expect("a good one").step(), 1);
        let names = files_below(&dir).expect("it is there");
        for name in ["checkpoint.json", "state", "critic/part-0-of-1.safetensors", "model/config.json"] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
        for name in names {
            let path = dir.join(&name);
            let good = fs::read(&path).expect("a file");
            let of = |byte: usize| (0..8).map(move |bit| (byte, bit));
            // Each flip has all files read again, so only some bytes.
            let bits: Vec<(usize, u8)> = match &*name {
                MANIFEST => (0..good.len()).step_by(7).flat_map(of).collect(),
                _ => [0, good.len() / 2, good.len() - 1].into_iter().flat_map(of).collect(),
            };
            for (byte, bit) in bits {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                fs::write(&path, bad).expect("writable");
                let found = found();
                assert!(found.checkpoint.is_none(), "{name}: bit {bit} of byte {byte}");
                assert_eq!(found.skipped.len(), 1);
            }
            fs::remove_file(&path).expect("it is there");
            assert!(found().checkpoint.is_none(), "{name} is gone");
            fs::write(&path, good).expect("writable");
        }
        assert!(found().checkpoint.is_some(), "all is as it was");
    }
}
