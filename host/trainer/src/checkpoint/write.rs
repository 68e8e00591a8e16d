//! Writing the checkpoints of a run, and forgetting those that are too many.

use super::manifest::{FORMAT, Identity, Manifest, Trained, hexadecimal};
use super::{CRITIC, FOLDER, MANIFEST, MODEL, STATE, files_below, list, part_names};
use crate::disk::{remove, replace, write};
use crate::error::TrainError;
use crate::save::save_model;
use crate::step::Learner;
use crate::step::part::digest;
use molt_core::settings::{self, Ckpt};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
