//! A plugin's failure, as its author reads it.

use molt_sandbox::{Cause, Failure, Info, Kind};

/// What the runtimes of languages say of every crash, and an author has no use for.
const NOISE: &str = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";

/// The failure and where in the plugin's code it happened; or that what it returned is of another type, which the
/// runtimes of Python and JavaScript tell only of themselves.
pub(crate) fn told(failure: &Failure, info: &Info) -> String {
    let Some(returned) = wrong_type(&failure.log) else {
        let log = failure.log.replace(NOISE, "").trim_end().to_owned();
        return Failure { log, ..failure.clone() }.with_trace();
    };
    let wanted = match info.kind {
        Kind::Reward => "`score` returns a verdict, and the `score` of a group a list of them",
        Kind::Environment => "`reset` returns a list of messages, and `step` a transition",
        Kind::Estimator => "`describe` returns traits, and `estimate` an estimate",
        Kind::Loss => "`compute` returns losses and slopes",
        Kind::Interpreter => "`run` returns an output",
        Kind::ChatAgent => "see the contract",
    };
    format!(
        "plugin `{}` returned what is not of the contract's type, or has a part that is not ({returned}): {wanted}",
        failure.plugin
    )
}

/// As [`told`], after a terminal has shown what the plugin printed.
pub(crate) fn after_printed(mut failure: Failure, info: &Info) -> String {
    if wrong_type(&failure.log).is_none() {
        failure.log.clear();
    }
    told(&failure, info)
}

/// The lines that a call printed, without those that a runtime adds.
pub(crate) fn printed(text: &str) -> impl Iterator<Item = &str> {
    let of_runtime = |line: &str| {
        let panicked = line.starts_with("thread '") && line.contains("panicked at");
        line == NOISE
            || wrong_type(line).is_some()
            || (panicked && ["at runtime/src/", "at crates/"].iter().any(|place| line.contains(place)))
    };
    text.trim_matches('\n').lines().filter(move |line| !of_runtime(line))
}

/// What was returned instead, as the runtime says it.
fn wrong_type(log: &str) -> Option<&str> {
    let python = log.split_once("on an `Err` value: PyErr { ").and_then(|(_, error)| {
        let (_, value) = error.split_once("value: ")?;
        Some(value.split(", traceback:").next().unwrap_or(value))
    });
    let js = || {
        let (_, error) = log.split_once("FromJs { ")?;
        Some(error.split(", message").next().unwrap_or(error))
    };
    python.or_else(js)
}

/// What to do about a call that failed, if its cause says more than `otherwise`.
pub(crate) fn help(failure: &Failure, otherwise: &str) -> String {
    let name = &failure.plugin;
    match &failure.cause {
        Cause::Denied(_) => format!(
            "do without it, or grant it: write plugins.grant.{name} into a TOML file, and give that with --config"
        ),
        Cause::Memory { .. }
        | Cause::Tables { .. }
        | Cause::Cpu { .. }
        | Cause::Fuel { .. }
        | Cause::Time { .. }
        | Cause::HostCalls { .. }
        | Cause::Output { .. } => format!(
            "do less, or raise the limit: write plugins.only.{name} into a TOML file, and give that with --config"
        ),
        Cause::NotFinite(_) => {
            "compute in f64, and add a small number to what may be 0 before dividing by it".into()
        }
        _ => otherwise.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(log: &str) -> (Failure, Info) {
        let cause = Cause::Trap("unreachable".into());
        let failure =
            Failure { plugin: "p".into(), rollout: None, cause, log: log.into(), trace: Box::default() };
        let info = Info {
            name: "p".into(),
            kind: Kind::Reward,
            version: None,
            description: None,
            contract: "0.2.0".into(),
            digest: String::new(),
            size: 0,
            path: "p.wasm".into(),
            imports: vec![],
        };
        (failure, info)
    }

    #[test]
    fn a_value_of_another_type_is_told_with_what_is_wanted() {
        for (log, returned) in [
            (
                "thread 'x' panicked at runtime/src/lib.rs:1280:25: called `Result::unwrap()` on an `Err` value: \
                 PyErr { type: <class 'KeyError'>, value: KeyError(<class 'float'>), traceback: None }",
                "KeyError(<class 'float'>)",
            ),
            (
                "panicked at crates/runtime/src/call.rs:283:18: invalid variant: Error(FromJs { from: \"int\", to: \
                 \"variant\", message: None })",
                "from: \"int\", to: \"variant\"",
            ),
        ] {
            let (failure, info) = failure(log);
            let told = told(&failure, &info);
            assert!(told.contains(returned) && told.contains("`score` returns a verdict"), "{told}");
        }
    }

    #[test]
    fn a_runtimes_own_words_are_left_out() {
        let (failure, info) = failure(&format!("panicked at src/lib.rs:3:5: no {NOISE}"));
        assert!(told(&failure, &info).ends_with("it printed: panicked at src/lib.rs:3:5: no"));
        let text = format!("\nthread '<unnamed>' (1) panicked at runtime/src/lib.rs:1:2:\nmine\n{NOISE}\n");
        assert_eq!(printed(&text).collect::<Vec<_>>(), ["mine"]);
        let text = "thread '<unnamed>' (1) panicked at src/lib.rs:1:2:\nmine";
        assert_eq!(printed(text).count(), 2);
    }
}
