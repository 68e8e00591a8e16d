//! What goes wrong with a plugin: before it runs ([`LoadError`]), and when it does ([`Failure`]).

use molt_core::ids::RolloutId;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

use crate::contract;
use crate::info::Kind;

/// A plugin cannot be used. Found before a run starts.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("no plugin called `{name}`{}; looked in {}", suggest(.near), places(.looked_in))]
    NotFound { name: String, near: Vec<String>, looked_in: Vec<PathBuf> },

    #[error("`{text}` does not name a plugin: {why}")]
    Reference { text: String, why: &'static str },

    #[error(
        "plugin `{name}` with digest {wanted} was asked for, and {}; pull that one, or ask for another",
        found_digests(.found)
    )]
    Digest { name: String, wanted: String, found: Vec<(PathBuf, String)> },

    #[error("cannot read plugin {}; check that the file is there and may be read", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },

    #[error(
        "{} is larger than {limit_mib} MiB, too large for a plugin; build it without debug information, or put less \
         data into it", .path.display()
    )]
    TooLarge { path: PathBuf, limit_mib: u64 },

    #[error("{} is not a WebAssembly file: it does not begin like one", .path.display())]
    NotWasm { path: PathBuf },

    #[error(
        "{} is a core WebAssembly module, and a plugin is a component; build it for wasm32-wasip2, \
         or wrap it with `wasm-tools component new`", .path.display()
    )]
    CoreModule { path: PathBuf },

    #[error("{} is damaged: {reason}; fetch or build it anew", .path.display())]
    Corrupt { path: PathBuf, reason: String },

    #[error("{} would take too long to compile: {what}; make it of smaller functions, or of fewer", .path.display())]
    TooMuch { path: PathBuf, what: String },

    #[error(
        "{} is not a Molt plugin: it exports {}, and a plugin exports one of molt:plugin/environment, reward, \
         group-reward, estimator, loss, code and agent; build it against a world of wit/{}",
        .path.display(), exported(.exports), contract::LATEST
    )]
    NotPlugin { path: PathBuf, exports: Vec<String> },

    #[error(
        "plugin `{name}` is built against molt:plugin {found}, and this Molt runs molt:plugin {supported}; \
         {remedy}"
    )]
    Contract { name: String, found: String, supported: &'static str, remedy: String },

    #[error("plugin `{name}` is {}, and {} was asked for", .found.with_article(), .wanted.with_article())]
    WrongKind { name: String, found: Kind, wanted: Kind },

    #[error("plugin `{name}` imports `{import}`, which this run does not grant{}", grant_of(.name, .import))]
    NotGranted { name: String, import: String },

    #[error("plugins.grant.{name}.{grant} cannot be granted: {why}")]
    Grant { name: String, grant: &'static str, why: String },

    #[error(
        "plugin `{name}` cannot be compiled and linked: {reason}; build it against a world of wit/{}",
        contract::LATEST
    )]
    Link { name: String, reason: String },

    #[error("the cache for compiled plugins, {}, cannot be used", .path.display())]
    Cache { path: PathBuf, source: std::io::Error },

    #[error("the WebAssembly runtime cannot start: {reason}")]
    Runtime { reason: String },
}

/// The setting that grants `import` to the plugin called `name`.
fn grant_of(name: &str, import: &str) -> String {
    let interface = import.split('@').next().unwrap_or(import);
    let grant = match interface {
        "molt:plugin/model" => "model = \"judge\"` or `\"policy\"",
        "molt:plugin/code" => "code = \"python\"",
        "wasi:http/types" | "wasi:http/outgoing-handler" => "http = [\"GET https://example.org\"]",
        _ => return String::new(),
    };
    format!("; to grant it, set `plugins.grant.{name}.{grant}`")
}

fn exported(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [name] => name.clone(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
    }
}

fn suggest(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" (did you mean `{}`?)", names.join("` or `")),
    }
}

fn found_digests(found: &[(PathBuf, String)]) -> String {
    let shown: Vec<String> =
        found.iter().map(|(path, digest)| format!("{} has {digest}", path.display())).collect();
    shown.join(", ")
}

fn places(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

/// One call of a plugin failed. The rollout that it was for cannot be scored.
#[derive(Debug, Clone, PartialEq, Error)]
pub struct Failure {
    pub plugin: String,
    /// None for a call that is not about one rollout, like an estimate.
    pub rollout: Option<RolloutId>,
    pub cause: Cause,
    /// The end of what the instance printed, on one line.
    pub log: String,
    /// The innermost functions of the plugin that were running, the innermost first; with source lines where
    /// the component has debug information. Not part of the one line that `Display` writes.
    pub trace: Box<[String]>,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// More memory than `limit_mib` was asked for, and the plugin could not go on without.
    Memory { limit_mib: u64 },
    /// More table elements than `limit` were asked for, and the plugin could not go on without.
    Tables { limit: usize },
    /// More CPU time than `limit_ms` was used.
    Cpu { limit_ms: u64 },
    /// More than `limit` WebAssembly instructions were run.
    Fuel { limit: u64 },
    /// The call took longer than `limit_s`, waiting included.
    Time { limit_s: u64 },
    /// The host was called more often than `limit`.
    HostCalls { limit: u64 },
    /// More data than `limit_kib` was handed to the host at once.
    Output { limit_kib: u64 },
    /// The stack overflowed.
    Stack,
    /// The plugin crashed: a panic, an invalid access, an exit.
    Trap(String),
    /// It returned a number that is not finite.
    NotFinite(String),
    /// It returned something that does not fit the call.
    BadReturn(String),
    /// It asked for a file or the network, which nobody granted.
    Denied(String),
    /// It said itself that it cannot do its work.
    Reported(String),
    /// The host's own fault: the call's arguments do not fit together.
    BadCall(String),
    /// The host's own fault: no room for another instance.
    Full(String),
}

impl Failure {
    /// The failure for the plugin's author: the line that `Display` writes, then one line for each function
    /// of the plugin that was running.
    pub fn with_trace(&self) -> String {
        let frames = self.trace.iter().map(|frame| format!("\n  in {frame}"));
        std::iter::once(self.to_string()).chain(frames).collect()
    }

    /// The kind of failure, as it is counted in metrics.
    pub fn label(&self) -> &'static str {
        match self.cause {
            Cause::Memory { .. } | Cause::Tables { .. } => "memory-limit",
            Cause::Cpu { .. } => "cpu-limit",
            Cause::Fuel { .. } => "fuel-limit",
            Cause::Time { .. } => "time-limit",
            Cause::HostCalls { .. } => "host-calls-limit",
            Cause::Output { .. } => "output-limit",
            Cause::Stack => "stack-overflow",
            Cause::Trap(_) => "trap",
            Cause::NotFinite(_) => "not-finite",
            Cause::BadReturn(_) => "bad-return",
            Cause::Denied(_) => "denied",
            Cause::Reported(_) => "infra",
            Cause::BadCall(_) => "bad-call",
            Cause::Full(_) => "sandbox-full",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin `{}` ", self.plugin)?;
        match &self.cause {
            Cause::Memory { limit_mib } => write!(f, "needed more memory than its limit of {limit_mib} MiB")?,
            Cause::Tables { limit } => write!(f, "needed more table elements than its limit of {limit}")?,
            Cause::Cpu { limit_ms } => write!(f, "used more CPU time than its limit of {limit_ms} ms")?,
            Cause::Fuel { limit } => write!(f, "ran more instructions than its limit of {limit}")?,
            Cause::Time { limit_s } => write!(f, "took longer than its limit of {limit_s} s")?,
            Cause::HostCalls { limit } => write!(f, "called the host more often than its limit of {limit}")?,
            Cause::Output { limit_kib } => {
                write!(f, "handed the host more data at once than its limit of {limit_kib} KiB")?
            }
            Cause::Stack => write!(f, "overflowed its stack")?,
            Cause::Trap(what) => write!(f, "crashed ({what})")?,
            Cause::NotFinite(what) => write!(f, "returned a number that is not finite ({what})")?,
            Cause::BadReturn(what) => write!(f, "returned what does not fit the call ({what})")?,
            Cause::Denied(what) => {
                let grant = if what.starts_with("the network") { "http" } else { "read" };
                let name = &self.plugin;
                write!(f, "asked for {what}, which is not granted (see plugins.grant.{name}.{grant})")?
            }
            Cause::Reported(what) => write!(f, "reported a failure ({what})")?,
            Cause::BadCall(what) => write!(f, "was called with arguments that do not fit together ({what})")?,
            Cause::Full(what) => write!(f, "found no room for another instance ({what})")?,
        }
        if let Some(rollout) = self.rollout {
            write!(f, " in rollout {rollout}")?;
        }
        if !self.log.is_empty() {
            write!(f, "; it printed: {}", self.log)?;
        }
        Ok(())
    }
}
