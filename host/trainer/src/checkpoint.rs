//! Checkpoints: directories with all that a run needs to go on, whole or not there at all.
//!
//! `checkpoints/step-000010/` holds `checkpoint.json`, which names every other file with its digest, and its own; a part of
//! every rank; `state`, where the loop is; and the exported model, if that is asked for. It is written under another name, flushed, and renamed.

use crate::disk::{remove, replace, write};
use crate::error::TrainError;
use crate::mesh::Mesh;
use crate::save::save_model;
use crate::step::Learner;
use crate::step::part::{digest, file_name};
use molt_core::settings::{self, Ckpt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FOLDER: &str = "checkpoints";
const MANIFEST: &str = "checkpoint.json";
const STATE: &str = "state";
const MODEL: &str = "model";
/// Where the parts of the critic are.
const CRITIC: &str = "critic";

/// Raised when files are laid out in another way.
const FORMAT: u32 = 5;

/// What a run is of, which one that goes on must be of too.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The command: `train` or `sft`.
    pub command: String,
    /// The digest of what it is trained on.
    pub data: String,
    /// The fingerprint of the weights, if some of them are not trained, and so in no checkpoint.
    pub frozen: Option<String>,
    /// What plugins it has.
    pub components: Value,
    /// Its resolved settings, in TOML.
    pub settings: String,
}

impl Identity {
    /// Of a run over `data`, whose contents are what counts.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(
        command: &str,
        data: &[&Path],
        components: Value,
        settings: String,
    ) -> Result<Self, TrainError> {
        Ok(Self { command: command.to_owned(), data: digest_of(data)?, frozen: None, components, settings })
    }
}

/// The digest of what these files hold.
///
/// # Errors
/// If one cannot be read.
pub fn digest_of(files: &[&Path]) -> Result<String, TrainError> {
    let of = |path: &&Path| {
        let digest =
            digest(path).map_err(|source| TrainError::Unreadable { path: path.to_path_buf(), source })?;
        Ok(hexadecimal(&digest))
    };
    Ok(files.iter().map(of).collect::<Result<Vec<_>, TrainError>>()?.join(" "))
}

impl Identity {
    /// Of a run that trains a part of weights with this fingerprint.
    #[must_use]
    pub fn over(self, fingerprint: &str) -> Self {
        Self { frozen: Some(hexadecimal(&Sha256::digest(fingerprint))), ..self }
    }
}

/// `checkpoint.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    step: u64,
    #[serde(flatten)]
    mesh: Mesh,
    #[serde(flatten)]
    policy: Trained,
    critic: Option<Trained>,
    /// SHA-256 of every other file, in hexadecimal.
    files: BTreeMap<String, String>,
    #[serde(flatten)]
    of: Identity,
    /// SHA-256 of this file, with zeros in the place of these digits.
    digest: String,
}

impl Manifest {
    /// As a file. Whatever its digest is before, it is right in there.
    fn seal(mut self) -> serde_json::Result<Vec<u8>> {
        self.digest = UNKNOWN.to_owned();
        let mut text = serde_json::to_string_pretty(&self)?;
        let digest = hexadecimal(&Sha256::digest(&text));
        // The last field; what looks like it before would be a setting.
        if let Some(at) = text.rfind(UNKNOWN) {
            text.replace_range(at..at + UNKNOWN.len(), &digest);
        }
        Ok(text.into_bytes())
    }

    /// Reads the file, or says why it cannot be used.
    fn open(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |error: serde_json::Error| format!("{MANIFEST} is damaged: {error}");
        let Format { format } = serde_json::from_slice(text).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!("it is of format {format}, and this version of molt reads {FORMAT}"));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(damaged)?;
        let mut as_written = String::from_utf8_lossy(text).into_owned();
        let at = as_written.rfind(&manifest.digest).filter(|_| manifest.digest.len() == UNKNOWN.len());
        if let Some(at) = at {
            as_written.replace_range(at..at + UNKNOWN.len(), UNKNOWN);
        }
        if hexadecimal(&Sha256::digest(&as_written)) != manifest.digest {
            return Err(format!("{MANIFEST} is damaged: it is not what was written"));
        }
        Ok(manifest)
    }
}

/// The digits of a digest before it is known.
const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A model of which there are parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Trained {
    /// Updates of the optimiser.
    updates: u64,
    /// Shape of every trained parameter.
    parameters: BTreeMap<String, Vec<i64>>,
}

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
    "algo.kl.coef",
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

    /// Whether a model with parameters of these shapes can go on from it.
    ///
    /// # Errors
    /// The first parameter that it holds and the model has not.
    pub fn fits(&self, shapes: &BTreeMap<String, Vec<i64>>) -> Result<(), TrainError> {
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
            let of_models =
                |change: &&settings::Change| OF_MODELS.iter().any(|key| change.key.starts_with(key));
            let changed: Vec<String> = changes
                .iter()
                .filter(of_models)
                .map(|change| format!("{} was {} and is {}", change.key, change.before, change.now))
                .collect();
            let why =
                if changed.is_empty() { "their files have changed".to_owned() } else { changed.join(", ") };
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
            (Some(_), None) => return Err(refused("it has a critic, and this run trains none".to_owned())),
            (None, Some(_)) => return Err(refused("it has no critic, and this run trains one".to_owned())),
        };
        policy.restore(&self.dir, *mesh, of_policy.updates)?;
        if let Some((had, critic)) = critic {
            critic.restore(&self.dir.join(CRITIC), *mesh, had.updates)?;
        }
        let state = fs::read(self.dir.join(STATE)).map_err(|error| refused(format!("{STATE}: {error}")))?;
        postcard::from_bytes(&state).map_err(|error| refused(format!("{STATE} is damaged: {error}")))
    }
}

impl Trained {
    fn new(learner: &Learner) -> Self {
        Self { updates: learner.version().0, parameters: learner.shapes() }
    }

    /// Whether it is of the model that the learner trains, or why not.
    fn is_of(&self, learner: &Learner) -> Result<(), String> {
        let (had, has) = (&self.parameters, learner.shapes());
        let other = had.iter().chain(&has).find(|(name, _)| had.get(*name) != has.get(*name));
        let Some((name, shape)) = other else { return Ok(()) };
        Err(match (had.get(name), has.get(name)) {
            (Some(had), Some(has)) => format!("of another model: {name} was {had:?} and is {has:?}"),
            (Some(_), None) => {
                format!("of another model, or another part of it is trained: {name} {shape:?} is not")
            }
            _ => format!("of another model, or another part of it was trained: {name} {shape:?} was not"),
        })
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

/// Writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Checkpoints<'a> {
    /// `checkpoints/` in the run directory.
    dir: PathBuf,
    settings: &'a Ckpt,
    model: &'a settings::Model,
    of: Identity,
    /// The step of the last one.
    last: u64,
}

impl<'a> Checkpoints<'a> {
    /// For a run in `run_dir` that begins after step `last`.
    pub(crate) fn new(
        run_dir: &Path,
        (settings, model): (&'a Ckpt, &'a settings::Model),
        of: Identity,
        last: u64,
    ) -> Self {
        Self { dir: run_dir.join(FOLDER), settings, model, of, last }
    }

    /// Whether one is to be written after `step`, which the run ends with or not.
    pub(crate) fn due(&self, step: u64, is_end: bool) -> bool {
        step > self.last && self.settings.every.is_some_and(|every| is_end || step.is_multiple_of(every))
    }

    /// Writes one, and then forgets those that are too many.
    ///
    /// # Errors
    /// If it cannot be written; what was there before is still there then.
    pub(crate) fn save(
        &mut self,
        models: (&mut Learner, Option<&mut Learner>),
        step: u64,
        state: &impl Serialize,
    ) -> Result<(), TrainError> {
        let part = self.dir.join(format!(".step-{step:06}.part"));
        let result = self.write(models, step, state, &part).and_then(|()| {
            let place = self.dir.join(format!("step-{step:06}"));
            // One of the same step, which could not be used or is written anew, is out of the way at once.
            let old = self.dir.join(format!(".step-{step:06}.old"));
            replace(&part, &place, &old).map_err(|source| TrainError::Write { path: place, source })
        });
        if let Err(error) = result {
            // What is half-written must not stay; the first error is the one to report.
            let _ = remove(&part);
            return Err(TrainError::Save { step, last: self.last, source: Box::new(error) });
        }
        self.last = step;
        self.forget();
        Ok(())
    }

    fn write(
        &self,
        (policy, mut critic): (&mut Learner, Option<&mut Learner>),
        step: u64,
        state: &impl Serialize,
        part: &Path,
    ) -> Result<(), TrainError> {
        let unwritable = |source| TrainError::Write { path: part.to_owned(), source };
        remove(part).and_then(|()| fs::create_dir_all(part)).map_err(unwritable)?;
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        let models = std::iter::once(("", &mut *policy)).chain(critic.as_deref_mut().map(|it| (CRITIC, it)));
        for (folder, learner) in models {
            let parts = learner.save(&part.join(folder))?;
            let names = part_names(folder, parts.len());
            for (rank, (name, digest)) in names.zip(&parts).enumerate() {
                if !part.join(&name).exists() {
                    return Err(TrainError::NotShared { rank, path: part.to_owned() });
                }
                files.insert(name, hexadecimal(digest));
            }
        }
        let state = postcard::to_allocvec(state).map_err(|error| unwritable(io::Error::other(error)))?;
        let path = part.join(STATE);
        let written = write(&path, &state).and_then(|()| digest(&path));
        files.insert(STATE.to_owned(), hexadecimal(&written.map_err(unwritable)?));
        if self.settings.export {
            save_model(policy, self.model, &part.join(MODEL))?;
            for name in files_below(part).map_err(unwritable)? {
                if let Entry::Vacant(place) = files.entry(name) {
                    let digest = digest(&part.join(place.key())).map_err(unwritable)?;
                    place.insert(hexadecimal(&digest));
                }
            }
        }
        let manifest = Manifest {
            format: FORMAT,
            step,
            mesh: policy.mesh(),
            policy: Trained::new(policy),
            critic: critic.as_deref().map(Trained::new),
            files,
            of: self.of.clone(),
            digest: String::new(),
        };
        let text = manifest.seal().map_err(|error| unwritable(error.into()))?;
        write(&part.join(MANIFEST), &text).map_err(unwritable)
    }

    /// Removes what was left half-written, and the oldest while there are too many or they take too much. What cannot
    /// be removed stays.
    fn forget(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(".step-") {
                let _ = remove(&entry.path());
            }
        }
        let Ok(all) = list(&self.dir) else { return };
        // Later ones are of steps that this run did not go on from, such as one that was damaged.
        let (mut all, abandoned): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(step, _)| *step <= self.last);
        abandoned.iter().for_each(|(_, dir)| drop(remove(dir)));
        let newest = all.pop();
        let limit = self.settings.keep_gib.map(|gib| (gib * (1_u64 << 30) as f64) as u64);
        let mut left: Vec<u64> = all.iter().chain(&newest).map(|(_, dir)| size(dir)).collect();
        for (_, dir) in &all {
            let too_large = limit.is_some_and(|limit| left.iter().sum::<u64>() > limit);
            if left.len() <= self.settings.keep && !too_large {
                break;
            }
            let _ = remove(dir);
            left.remove(0);
        }
    }
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

/// Bytes of all files below a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::{alone, decoder, layout};

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
