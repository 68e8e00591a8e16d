//! The run directory: everything that a run leaves behind, readable at any moment.

use crate::ObserveError;
use crate::lock::{FILE, Lock};
use crate::metrics::MetricsFile;
use crate::tensorboard::EventFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An open run directory. Whatever happens to the process, the files hold whole records.
pub struct RunDir {
    path: PathBuf,
    command: String,
    step: u64,
    metrics: MetricsFile,
    events: EventFile,
    /// Held for as long as the run goes on.
    _lock: Lock,
}

impl RunDir {
    /// Whether [`RunDir::create`] would succeed at `path`; leaves nothing behind.
    ///
    /// # Errors
    /// A directory that is not empty, something else in its place, or one that cannot be written to.
    pub fn check(path: &Path) -> Result<(), ObserveError> {
        let unwritable = |source| ObserveError::Unwritable { path: path.to_owned(), source };
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.any(|entry| entry.map_or(true, |entry| entry.file_name() != FILE)) {
                    return Err(ObserveError::NotEmpty(path.to_owned()));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(ObserveError::NotADirectory(path.to_owned()));
            }
            Err(error) => return Err(unwritable(error)),
        }
        // The nearest directory that exists is where the first new entry goes.
        let path_or_here =
            |p: &Path| if p.as_os_str().is_empty() { PathBuf::from(".") } else { p.to_owned() };
        let existing = path.ancestors().map(path_or_here).find(|p| p.exists());
        let existing = existing.ok_or_else(|| unwritable(ErrorKind::NotFound.into()))?;
        let probe = existing.join(format!(".molt-probe-{}", process::id()));
        fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)).map_err(unwritable)
    }

    /// Makes the directory, and writes a first status.
    ///
    /// # Errors
    /// As [`RunDir::check`], and if another process has it.
    pub fn create(path: &Path, command: &str) -> Result<RunDir, ObserveError> {
        Self::check(path)?;
        let lock = Lock::take(path, Duration::ZERO, || {})?;
        // It may have become another's between the two.
        Self::check(path)?;
        let run = Self::open(lock, command, 0)?;
        run.event(&format!("{command} started"))?;
        Ok(run)
    }

    /// Goes on in the directory of an earlier run at `step`: metrics of later steps are forgotten.
    ///
    /// # Errors
    /// If it cannot be written to, or its metrics are damaged.
    pub fn resume(lock: Lock, command: &str, step: u64) -> Result<RunDir, ObserveError> {
        let run = Self::open(lock, command, step)?;
        run.event(&format!("{command} goes on after step {step}"))?;
        Ok(run)
    }

    fn open(lock: Lock, command: &str, step: u64) -> Result<RunDir, ObserveError> {
        let path = lock.dir().to_owned();
        let unwritable = |source| ObserveError::Unwritable { path: path.clone(), source };
        fs::create_dir_all(path.join("tensorboard")).map_err(unwritable)?;
        let time = OffsetDateTime::now_utc();
        let now = seconds(time);
        // A run that goes on at once does so within the same second.
        let name = format!("events.out.tfevents.{}.{:09}.molt", now as u64, time.nanosecond());
        let run = RunDir {
            metrics: MetricsFile::open(path.join("metrics.jsonl"), step)?,
            events: EventFile::create(path.join("tensorboard").join(name), now)?,
            command: command.to_owned(),
            step,
            path,
            _lock: lock,
        };
        run.status("running", None)?;
        Ok(run)
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `settings.toml`: the resolved settings.
    ///
    /// # Errors
    /// A failing write.
    pub fn write_settings(&self, toml: &str) -> Result<(), ObserveError> {
        self.replace("settings.toml", toml.as_bytes())
    }

    /// `components.json`: name, digest and the rest of what is known of every plugin used.
    ///
    /// # Errors
    /// A failing write.
    pub fn write_components(&self, components: &Value) -> Result<(), ObserveError> {
        self.write_json("components.json", components)
    }

    /// `NAME`: any other JSON document, replaced as a whole.
    ///
    /// # Errors
    /// A failing write.
    pub fn write_json(&self, name: &str, value: &Value) -> Result<(), ObserveError> {
        self.replace(name, format!("{value:#}\n").as_bytes())
    }

    /// `NAME`: any other text, replaced as a whole.
    ///
    /// # Errors
    /// A failing write.
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), ObserveError> {
        self.replace(name, text.as_bytes())
    }

    /// The metrics of one step: a line of `metrics.jsonl`, a TensorBoard record, and the step in `status.json`.
    ///
    /// # Errors
    /// A failing write.
    pub fn metrics(&mut self, step: u64, metrics: &BTreeMap<String, f64>) -> Result<(), ObserveError> {
        let now = seconds(OffsetDateTime::now_utc());
        self.metrics.append(step, now, metrics)?;
        self.events.append(step, now, metrics)?;
        self.step = step;
        self.status("running", None)
    }

    /// A line of `run.log`, with the time in UTC.
    ///
    /// # Errors
    /// A failing write.
    pub fn event(&self, text: &str) -> Result<(), ObserveError> {
        let path = self.path.join("run.log");
        let line = format!("{} {}\n", now(), text.replace('\n', "\n    "));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(ObserveError::write(&path))
    }

    /// `trajectories/step-000010.md`.
    ///
    /// # Errors
    /// A failing write.
    pub fn trajectories(&self, step: u64, markdown: &str) -> Result<(), ObserveError> {
        let dir = self.path.join("trajectories");
        fs::create_dir_all(&dir).map_err(ObserveError::write(&dir))?;
        self.replace(&format!("trajectories/step-{step:06}.md"), markdown.as_bytes())
    }

    /// The run came to its end: `summary.json`, and state `finished`.
    ///
    /// # Errors
    /// A failing write.
    pub fn finish(&mut self, summary: &Value) -> Result<(), ObserveError> {
        self.write_json("summary.json", summary)?;
        self.event("finished")?;
        self.status("finished", None)
    }

    /// The run was stopped between two steps: `summary.json` of what was done, and state `interrupted`.
    ///
    /// # Errors
    /// A failing write.
    pub fn interrupt(&mut self, summary: &Value) -> Result<(), ObserveError> {
        self.write_json("summary.json", summary)?;
        self.event(&format!("interrupted after step {}", self.step))?;
        self.status("interrupted", None)
    }

    /// The run stopped for `reason`: state `failed`.
    ///
    /// # Errors
    /// A failing write.
    pub fn fail(&mut self, reason: &str) -> Result<(), ObserveError> {
        self.event(&format!("failed: {reason}"))?;
        self.status("failed", Some(reason))
    }

    fn status(&self, state: &str, reason: Option<&str>) -> Result<(), ObserveError> {
        let mut status = json!({
            "state": state,
            "command": self.command,
            "pid": process::id(),
            "step": self.step,
            "updated": now(),
        });
        if let Some(reason) = reason {
            status["reason"] = reason.into();
        }
        self.write_json("status.json", &status)
    }

    /// Replaces a file as a whole: a reader sees the old one or the new one, never a part.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), ObserveError> {
        let path = self.path.join(name);
        write_whole(&path, bytes).map_err(ObserveError::write(&path))
    }
}

pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // What is half-written must not stay; the first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    written
}

fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
    now.format(&Rfc3339).unwrap_or_else(|_| now.unix_timestamp().to_string())
}

/// Seconds since 1970.
fn seconds(time: OffsetDateTime) -> f64 {
    time.unix_timestamp_nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_metrics;

    fn json(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).expect("reads")).expect("is JSON")
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("lists");
        let mut names: Vec<_> =
            entries.map(|e| e.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_leaves_everything_behind() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut run = RunDir::create(&dir.path().join("a/run"), "train").expect("creates");
        run.write_settings("[run]\nseed = 1\n").expect("writes");
        run.write_components(&json!([{"name": "grpo"}])).expect("writes");
        run.trajectories(10, "# Step 10\n").expect("writes");
        run.metrics(1, &BTreeMap::from([("reward".into(), 0.25)])).expect("writes");
        let status = json(&run.path().join("status.json"));
        assert_eq!((&status["state"], &status["step"]), (&json!("running"), &json!(1)));
        assert_eq!((&status["command"], &status["pid"]), (&json!("train"), &json!(process::id())));
        run.finish(&json!({"steps": 1})).expect("writes");
        assert_eq!(json(&run.path().join("status.json"))["state"], "finished");
        assert_eq!(json(&run.path().join("summary.json")), json!({"steps": 1}));
        assert_eq!(
            files(run.path()),
            [
                ".lock",
                "components.json",
                "metrics.jsonl",
                "run.log",
                "settings.toml",
                "status.json",
                "summary.json",
                "tensorboard",
                "trajectories"
            ]
        );
        assert_eq!(files(&run.path().join("trajectories")), ["step-000010.md"]);
        assert_eq!(read_metrics(&run.path().join("metrics.jsonl")).expect("reads")[0].values["reward"], 0.25);
    }

    #[test]
    fn a_run_that_goes_on_forgets_what_came_after_its_step() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut run = RunDir::create(dir.path(), "train").expect("creates");
        for step in 1..=5 {
            run.metrics(step, &BTreeMap::from([("loss".into(), step as f64)])).expect("writes");
        }
        drop(run);
        let metrics = dir.path().join("metrics.jsonl");
        let mut torn = fs::read(&metrics).expect("reads");
        torn.extend(b"{\"step\": 6, \"lo");
        fs::write(&metrics, torn).expect("writes");
        let steps = || -> Vec<(u64, f64)> {
            let rows = read_metrics(&metrics).expect("reads");
            rows.iter().map(|row| (row.step, row.values["loss"])).collect()
        };
        for (step, expected) in [(6, 1..=5), (3, 1..=3), (3, 1..=3)] {
            let lock = Lock::take(dir.path(), Duration::ZERO, || {}).expect("nobody has it");
            let mut run = RunDir::resume(lock, "train", step).expect("goes on");
            assert_eq!(steps(), expected.map(|step| (step, step as f64)).collect::<Vec<_>>());
            run.metrics(step + 1, &BTreeMap::from([("loss".into(), 0.5)])).expect("writes");
            assert_eq!(steps().last(), Some(&(step + 1, 0.5)));
            assert_eq!(json(&dir.path().join("status.json"))["step"], step + 1);
        }
        assert_eq!(files(&dir.path().join("tensorboard")).len(), 4);
        let log = fs::read_to_string(dir.path().join("run.log")).expect("reads");
        assert!(log.contains("train goes on after step 3"), "{log}");
    }

    #[test]
    fn interruption_and_failure_are_states() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut run = RunDir::create(dir.path(), "sft").expect("an empty directory is fine");
        run.interrupt(&json!({})).expect("writes");
        assert_eq!(json(&dir.path().join("status.json"))["state"], "interrupted");
        run.fail("no data\nat all").expect("writes");
        let status = json(&dir.path().join("status.json"));
        assert_eq!((&status["state"], &status["reason"]), (&json!("failed"), &json!("no data\nat all")));
        let log = fs::read_to_string(dir.path().join("run.log")).expect("reads");
        assert!(log.ends_with("failed: no data\n    at all\n"), "{log}");
    }

    #[test]
    fn a_directory_in_use_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("mine"), "x").expect("writes");
        assert!(matches!(RunDir::create(dir.path(), "train"), Err(ObserveError::NotEmpty(_))));
        assert_eq!(files(dir.path()), ["mine"]);
    }

    #[test]
    fn a_directory_of_another_process_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let lock = Lock::take(dir.path(), Duration::ZERO, || {}).expect("nobody has it");
        assert!(matches!(RunDir::create(dir.path(), "train"), Err(ObserveError::Busy(_))));
        drop(lock);
        let run = RunDir::create(dir.path(), "train").expect("all there is, is the lock");
        assert!(matches!(Lock::take(run.path(), Duration::ZERO, || {}), Err(ObserveError::Busy(_))));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("writes");
        assert!(matches!(RunDir::check(&file), Err(ObserveError::NotADirectory(_))));
        assert!(matches!(RunDir::check(&file.join("run")), Err(ObserveError::NotADirectory(_))));
        // Nobody, not even root, makes a directory here.
        let error = RunDir::check(Path::new("/proc/run")).expect_err("must be refused");
        assert!(error.to_string().starts_with("run directory /proc/run cannot be written to: "), "{error}");
        RunDir::check(&dir.path().join("new/run")).expect("could be created");
        assert_eq!(files(dir.path()), ["file"], "a check leaves nothing behind");
    }

    #[test]
    fn a_failing_write_names_the_file() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut run = RunDir::create(&dir.path().join("run"), "train").expect("creates");
        fs::remove_dir_all(run.path()).expect("removes");
        let error = run.metrics(1, &BTreeMap::new()).expect_err("must fail").to_string();
        assert!(error.contains("cannot write ") && error.contains("status.json"), "{error}");
    }
}
