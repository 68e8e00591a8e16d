//! Where a run begins: at its beginning, or at a checkpoint.

use crate::stop::{OrStop, Stop};
use molt_core::settings::{self, Ckpt};
use molt_model::Weights;
use molt_observe::{Lock, RunDir};
use molt_sandbox::LOCK_FILE;
use molt_trainer::checkpoint::{Checkpoint, Found, From, Identity};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;

const HELP: &str = "give another run.dir, or free space there";

/// How long a process that was told to end, or was killed, may take to leave the run directory.
const PATIENCE: Duration = Duration::from_secs(10);

/// The run directory to be made, of which nothing is written yet, or to go on in, which is locked.
pub(crate) fn run_dir(
    run: &settings::Run,
    ckpt: Option<&Ckpt>,
    command: &str,
) -> Result<(PathBuf, Option<Lock>), Stop> {
    let path = run.dir.clone().unwrap_or_else(|| {
        let format = format_description!("[year][month][day]-[hour][minute][second]");
        let now = OffsetDateTime::now_utc();
        let stamp = now.format(&format).unwrap_or_else(|_| now.unix_timestamp().to_string());
        Path::new("runs").join(format!("{command}-{stamp}"))
    });
    if ckpt.is_some_and(|ckpt| is_in_place(ckpt, &path)) {
        let waits = || eprintln!("waiting   for another process to leave {}", path.display());
        let lock = Lock::take(&path, PATIENCE, waits).or_user("the run cannot be recorded", HELP)?;
        return Ok((path, Some(lock)));
    }
    let help = match ckpt {
        Some(_) => "give another run.dir; to go on with the run there, set ckpt.load to it too",
        None => "give another run.dir",
    };
    RunDir::check(&path).or_user("the run cannot be recorded", help)?;
    Ok((path, None))
}

/// Whether a run goes on in the directory that it is loaded from.
fn is_in_place(ckpt: &Ckpt, run_dir: &Path) -> bool {
    let Some(load) = &ckpt.load else { return false };
    load == run_dir
        || match (load.canonicalize(), run_dir.canonicalize()) {
            (Ok(load), Ok(run_dir)) => load == run_dir,
            _ => false,
        }
}

/// With the fingerprint of the weights if some of them are in no checkpoint, and of `others` that are in none.
pub(crate) fn frozen(
    identity: Identity,
    (optim, lora): (&settings::Optim, &settings::Lora),
    weights: &Weights,
    others: &[&Weights],
) -> Result<Identity, Stop> {
    let is_whole = optim.freeze.is_empty() && lora.rank.is_none();
    let frozen: Vec<&Weights> =
        (!is_whole).then_some(weights).into_iter().chain(others.iter().copied()).collect();
    if frozen.is_empty() {
        return Ok(identity);
    }
    let all: Result<Vec<String>, _> = frozen.into_iter().map(Weights::fingerprint).collect();
    Ok(identity.over(&all.or_user("the model cannot be read", "fetch its files again")?.join("\n")))
}

/// Finds the checkpoint that the settings ask for, and says what is to be known of it.
pub(crate) fn from(
    ckpt: &Ckpt,
    run_dir: &Path,
    identity: Identity,
    settings: &impl settings::Settings,
    (shapes, has_critic): (&BTreeMap<String, Vec<i64>>, bool),
) -> Result<From, Stop> {
    let Some(load) = &ckpt.load else { return Ok(From { checkpoint: None, identity }) };
    let cannot = || format!("the run cannot go on from {}", load.display());
    let help = "ckpt.load names a run directory with checkpoints/ in it, or one of them";
    let Found { checkpoint, skipped } = Checkpoint::find(load).or_user(cannot(), help)?;
    for (path, reason) in &skipped {
        eprintln!("skipped   {}: {reason}", path.display());
    }
    match &checkpoint {
        Some(checkpoint) => {
            let help = "go on with the same data and settings, or leave out ckpt.load to begin anew";
            checkpoint.fits(shapes, has_critic).or_user(cannot(), "go on with the models that it is of")?;
            let differences = checkpoint.differences(&identity, settings).or_user(cannot(), help)?;
            eprintln!("resume    after step {}, from {}", checkpoint.step(), checkpoint.path().display());
            differences.iter().for_each(|line| eprintln!("changed   {line}"));
        }
        None if is_in_place(ckpt, run_dir) && skipped.is_empty() => {
            eprintln!("resume    no checkpoint in {}: the run begins anew", load.display());
        }
        None => {
            let error = format!("{}: there is no checkpoint that can be used", cannot());
            return Err(Stop::user(
                error,
                "ckpt.every has a run write some; leave out ckpt.load to begin anew",
            ));
        }
    }
    Ok(From { checkpoint, identity })
}

/// Makes the run directory, or goes on in it, and writes down what the run is made of: `components.json` last, and
/// `plugins.lock` if there are plugins. What follows from the settings is a comment in their file: taken to another run, it
/// would no longer follow.
pub(crate) fn record(
    (path, lock): (&Path, Option<Lock>),
    command: &str,
    (settings, implied): (&impl settings::Settings, &[(&str, String)]),
    (components, plugins): (&Value, Option<&str>),
    from: Option<&From>,
) -> Result<RunDir, Stop> {
    let mut toml = toml(settings)?;
    if !implied.is_empty() {
        toml += "\n# What is unset and follows from other settings:\n";
        toml.extend(implied.iter().map(|(key, value)| format!("# {key} = {value}\n")));
    }
    let step = from.and_then(|from| from.checkpoint.as_ref()).map_or(0, Checkpoint::step);
    let opened = match lock {
        Some(lock) => RunDir::resume(lock, command, step),
        None => RunDir::create(path, command),
    };
    let run_dir = opened.or_user("the run cannot be recorded", HELP)?;
    run_dir.write_settings(&toml).or_user("the run cannot be recorded", HELP)?;
    let locked = plugins.map(|lock| run_dir.write_text(LOCK_FILE, lock)).transpose();
    let written = locked.and_then(|_| run_dir.write_components(components));
    written.or_user("the run cannot be recorded", HELP)?;
    Ok(run_dir)
}

/// The resolved settings as a file.
pub(crate) fn toml(settings: &impl settings::Settings) -> Result<String, Stop> {
    settings.to_toml().or_user("these settings cannot be written down", "use paths in UTF-8")
}
