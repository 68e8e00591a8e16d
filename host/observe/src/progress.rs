//! The one live line that a person watches.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All live lines of the process, so that log lines can be printed above them.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Progress on standard error: a live line on a terminal; elsewhere a plain line every few seconds.
pub struct Progress {
    shown: Shown,
}

enum Shown {
    Live(ProgressBar),
    Plain(Mutex<Plain>),
}

struct Plain {
    out: Box<dyn Write + Send>,
    label: String,
    total: Option<u64>,
    every: Duration,
    printed: Option<Instant>,
    /// The last line, if it was not printed.
    waiting: Option<String>,
}

impl Progress {
    /// A line that says `label`, and counts to `total` if that is known.
    pub fn new(total: Option<u64>, label: impl Into<String>) -> Progress {
        let label = label.into();
        if !io::stderr().is_terminal() {
            return Self::plain(total, label, PLAIN_EVERY, Box::new(io::stderr()));
        }
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{prefix} {pos}/{len} {wide_msg} {elapsed}"),
            None => (ProgressBar::no_length(), "{prefix} {pos} {spinner} {wide_msg} {elapsed}"),
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = LINES.add(bar.with_prefix(label).with_style(style));
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress { shown: Shown::Live(bar) }
    }

    fn plain(total: Option<u64>, label: String, every: Duration, out: Box<dyn Write + Send>) -> Progress {
        let plain = Plain { out, label, total, every, printed: None, waiting: None };
        Progress { shown: Shown::Plain(Mutex::new(plain)) }
    }

    /// Shows `line` as the state after `step`.
    pub fn step(&self, step: u64, line: &str) {
        match &self.shown {
            Shown::Live(bar) => {
                bar.set_message(line.to_owned());
                bar.set_position(step);
            }
            Shown::Plain(plain) => lock(plain).step(step, line),
        }
    }

    /// Prints a line that stays.
    pub fn note(&self, line: &str) {
        match &self.shown {
            Shown::Live(bar) => bar.suspend(|| print(&mut io::stderr(), line)),
            // The step that it follows comes first.
            Shown::Plain(plain) => {
                let mut plain = lock(plain);
                plain.flush();
                print(&mut plain.out, line);
            }
        }
    }

    /// Leaves the last line standing, and the cursor below it. What is dropped is done.
    pub fn done(&self) {
        match &self.shown {
            Shown::Live(bar) if bar.is_finished() => {}
            Shown::Live(bar) => {
                let of = bar.length().map(|total| format!("/{total}")).unwrap_or_default();
                let last = format!("{} {}{of} {}", bar.prefix(), bar.position(), bar.message());
                bar.finish_and_clear();
                print(&mut io::stderr(), &last);
            }
            Shown::Plain(plain) => lock(plain).flush(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}

impl Plain {
    fn step(&mut self, step: u64, line: &str) {
        let of = self.total.map(|total| format!("/{total}")).unwrap_or_default();
        self.waiting = Some(format!("{} {step}{of} {line}", self.label));
        if self.printed.is_none_or(|at| at.elapsed() >= self.every) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if let Some(line) = self.waiting.take() {
            print(&mut self.out, &line);
            self.printed = Some(Instant::now());
        }
    }
}

/// A closed standard error must not stop a run, so a failure to print is ignored.
fn print(out: &mut dyn Write, line: &str) {
    let _ = out.write_all(format!("{line}\n").as_bytes());
}

fn lock(plain: &Mutex<Plain>) -> MutexGuard<'_, Plain> {
    plain.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error for log lines: prints above the live line, never into it.
#[derive(Debug, Default, Clone, Copy)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(every: Duration) -> String {
        let sink = Sink::default();
        let progress = Progress::plain(Some(3), "step".into(), every, Box::new(sink.clone()));
        progress.step(1, "reward 0.1");
        progress.step(2, "reward 0.2");
        progress.note("saved");
        progress.step(3, "reward 0.3");
        progress.done();
        progress.done();
        let bytes = sink.0.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn the_first_and_the_last_line_are_always_printed() {
        // And the one that a note follows.
        assert_eq!(
            printed(Duration::MAX),
            "step 1/3 reward 0.1\nstep 2/3 reward 0.2\nsaved\nstep 3/3 reward 0.3\n"
        );
    }

    #[test]
    fn every_line_is_printed_when_none_is_held_back() {
        assert_eq!(
            printed(Duration::ZERO),
            "step 1/3 reward 0.1\nstep 2/3 reward 0.2\nsaved\nstep 3/3 reward 0.3\n"
        );
    }
}
