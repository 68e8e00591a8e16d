//! Everything that continuous integration checks.

use crate::{audit, fuzz, interpreters, plugins, process, registry, setup, smollm2};
use anyhow::Result;
use std::time::{Duration, Instant};

pub(crate) fn test() -> Result<()> {
    let start = Instant::now();
    let mut stages = Vec::new();
    let cache = stage(&mut stages, "set-up", setup::setup)?;
    stage(&mut stages, "plugins", || plugins::build(&cache))?;
    stage(&mut stages, "interpreters", || interpreters::build(&cache))?;
    stage(&mut stages, "model", || smollm2::model(&cache))?;
    stage(&mut stages, "registry", || registry::registry(&cache))?;
    stage(&mut stages, "audit", audit::audit)?;
    for (name, arguments) in [
        ("format", &["fmt", "--all", "--check"][..]),
        ("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        ("tests", &["test", "--workspace", "--no-fail-fast"]),
    ] {
        stage(&mut stages, name, || process::run(&mut process::cargo(arguments)))?;
    }
    let briefly = fuzz::Options { seconds: 30, ..fuzz::Options::default() };
    stage(&mut stages, "fuzz", || fuzz::run(&cache, &briefly))?;
    println!();
    for (name, duration) in stages {
        println!("{name:<12} {}", clock(duration));
    }
    println!("every check passed in {}", clock(start.elapsed()));
    Ok(())
}

fn stage<T>(
    stages: &mut Vec<(&'static str, Duration)>,
    name: &'static str,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    eprintln!("── {name}");
    let start = Instant::now();
    let result = run();
    let elapsed = start.elapsed();
    eprintln!("── {name}: {} after {}", if result.is_ok() { "done" } else { "failed" }, clock(elapsed));
    stages.push((name, elapsed));
    result
}

/// Minutes and seconds, e.g. `3m07s`.
pub(crate) fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{:02}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_minutes_and_seconds() {
        for (millis, text) in
            [(0, "0s"), (59_400, "59s"), (59_600, "1m00s"), (187_000, "3m07s"), (3_600_000, "60m00s")]
        {
            assert_eq!(clock(Duration::from_millis(millis)), text);
        }
    }
}
