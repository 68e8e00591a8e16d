//! Where plugins are looked for, and what they may use.

use crate::window::ErrorLimit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Plugins {
    /// Directories to look for plugins in, before the standard ones.
    pub path: Vec<PathBuf>,
    /// The plugins.lock of another run. Every plugin must be the very component that is named there.
    pub lock: Option<PathBuf>,
    /// The run stops when more than this share of the last `error_window` rollouts failed in a plugin, or were
    /// not scored by any.
    pub max_error_rate: f64,
    /// How many of the latest rollouts the error rate is taken over.
    pub error_window: usize,
    /// Limits of every plugin.
    pub limits: Limits,
    /// Limits of single plugins by name, e.g. [plugins.only.math] cpu_ms = 500.
    pub only: BTreeMap<String, LimitOverrides>,
    /// What single plugins are granted, by name, e.g. [plugins.grant.judge] model = "judge".
    pub grant: BTreeMap<String, Grants>,
}

impl Default for Plugins {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            lock: None,
            max_error_rate: 0.2,
            error_window: 64,
            limits: Limits::default(),
            only: BTreeMap::new(),
            grant: BTreeMap::new(),
        }
    }
}

/// What one plugin may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Linear memory of one instance, in MiB.
    pub memory_mib: u64,
    /// CPU time of one call, in milliseconds.
    pub cpu_ms: u64,
    /// Time of one call from its beginning to its end, waiting included, in seconds.
    pub call_s: u64,
    /// WebAssembly instructions of one call. Unset: not counted, which is faster. A limit that is the same on every machine.
    pub fuel: Option<u64>,
    /// Stack of one instance, in KiB.
    pub stack_kib: usize,
    /// Elements of all tables of one instance.
    pub table_elements: usize,
    /// Instances that may be alive at a time; more wait.
    pub instances: usize,
    /// Data that one call may hand the host at once, as its answer or asking for something, in KiB.
    pub output_kib: u64,
    /// What one instance may print, in KiB; the rest is cut off.
    pub log_kib: u64,
    /// Calls of the host in one call of the plugin.
    pub host_calls: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 256,
            cpu_ms: 2000,
            call_s: 120,
            fuel: None,
            stack_kib: 2048,
            table_elements: 200_000,
            instances: 1024,
            output_kib: 8192,
            log_kib: 64,
            host_calls: 1_000_000,
        }
    }
}

/// Limits of one plugin; what is unset is taken from the limits of all.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LimitOverrides {
    /// Linear memory of one instance, in MiB.
    pub memory_mib: Option<u64>,
    /// CPU time of one call, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Time of one call from its beginning to its end, waiting included, in seconds.
    pub call_s: Option<u64>,
    /// WebAssembly instructions of one call.
    pub fuel: Option<u64>,
    /// Stack of one instance, in KiB.
    pub stack_kib: Option<usize>,
    /// Elements of all tables of one instance.
    pub table_elements: Option<usize>,
    /// Instances that may be alive at a time; more wait.
    pub instances: Option<usize>,
    /// Data that one call may hand the host at once, as its answer or asking for something, in KiB.
    pub output_kib: Option<u64>,
    /// What one instance may print, in KiB.
    pub log_kib: Option<u64>,
    /// Calls of the host in one call of the plugin.
    pub host_calls: Option<u64>,
}

/// What one plugin may reach beyond itself. The default is nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Grants {
    /// Directories that it may read. It sees each at the root under its last name: data/tests as /tests.
    pub read: Vec<PathBuf>,
    /// Size of a private directory that it may write to, /scratch, in MiB. Every instance has its own, which is empty at the start and gone at the end.
    pub scratch_mib: Option<u64>,
    /// Files and directories in /scratch at most.
    pub scratch_files: u64,
    /// HTTP requests that it may send, each a method and an origin, e.g. "GET https://example.org" or "POST http://127.0.0.1:8000".
    pub http: Vec<String>,
    /// Time of one HTTP request, in seconds.
    pub http_s: u64,
    /// Size of one HTTP request, and of one response, in KiB.
    pub http_kib: u64,
    /// HTTP requests of one instance.
    pub http_requests: u64,
    /// The model that it may ask.
    pub model: Option<GrantedModel>,
    /// Questions to the model of one instance.
    pub model_calls: u64,
    /// The interpreter plugin that runs code for it.
    pub code: Option<String>,
    /// Time that passes by itself, instead of virtual time.
    pub real_clock: bool,
    /// Random numbers from the operating system, instead of the run's seed.
    pub real_random: bool,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            read: Vec::new(),
            scratch_mib: None,
            scratch_files: 1000,
            http: Vec::new(),
            http_s: 30,
            http_kib: 1024,
            http_requests: 64,
            model: None,
            model_calls: 16,
            code: None,
            real_clock: false,
            real_random: false,
        }
    }
}

impl Grants {
    /// What is granted, a few words each, to be shown before a run; empty for a plugin that gets nothing.
    pub fn describe(&self) -> Vec<String> {
        let mut granted: Vec<String> =
            self.read.iter().map(|path| format!("reads {}", path.display())).collect();
        if let Some(mib) = self.scratch_mib {
            granted.push(format!("writes up to {mib} MiB in {} files of its own", self.scratch_files));
        }
        granted.extend(self.http.iter().map(|rule| format!("sends {rule}")));
        match self.model {
            Some(GrantedModel::Policy) => granted.push(format!("asks the policy {} times", self.model_calls)),
            Some(GrantedModel::Judge) => granted.push(format!("asks the judge {} times", self.model_calls)),
            None => {}
        }
        granted.extend(self.code.iter().map(|code| format!("runs code in {code}")));
        if self.real_clock {
            granted.push("sees real time".into());
        }
        if self.real_random {
            granted.push("gets real randomness".into());
        }
        granted
    }
}

/// A model that a plugin may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrantedModel {
    /// The model in training.
    Policy,
    /// The endpoint under `judge`.
    Judge,
}

/// A model behind an HTTP endpoint of the chat-completions kind, for plugins with the grant model = "judge".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Judge {
    /// Where it is, up to and with the version, e.g. http://127.0.0.1:8000/v1. Unset: there is no judge.
    pub url: Option<String>,
    /// The model's name at the endpoint.
    pub model: String,
    /// The environment variable that holds the key.
    pub key_env: Option<String>,
    /// Time of one request, in seconds.
    pub request_s: u64,
    /// Requests under way at a time; more wait.
    pub concurrency: usize,
}

impl Default for Judge {
    fn default() -> Self {
        Self { url: None, model: String::new(), key_env: None, request_s: 60, concurrency: 16 }
    }
}

/// What one plugin may use and reach.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Access {
    pub limits: Limits,
    pub grants: Grants,
    /// The limits of the interpreter that the grant `code` names.
    pub code_limits: Limits,
}

impl From<Limits> for Access {
    /// These limits and no grants.
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

impl Plugins {
    /// When failing rollouts end the run.
    pub fn error_limit(&self) -> ErrorLimit {
        ErrorLimit { max_rate: self.max_error_rate, window: self.error_window }
    }

    /// The limits of the plugin called `name`.
    pub fn limits_of(&self, name: &str) -> Limits {
        let (all, one) = (self.limits, self.only.get(name).copied().unwrap_or_default());
        Limits {
            memory_mib: one.memory_mib.unwrap_or(all.memory_mib),
            cpu_ms: one.cpu_ms.unwrap_or(all.cpu_ms),
            call_s: one.call_s.unwrap_or(all.call_s),
            fuel: one.fuel.or(all.fuel),
            stack_kib: one.stack_kib.unwrap_or(all.stack_kib),
            table_elements: one.table_elements.unwrap_or(all.table_elements),
            instances: one.instances.unwrap_or(all.instances),
            output_kib: one.output_kib.unwrap_or(all.output_kib),
            log_kib: one.log_kib.unwrap_or(all.log_kib),
            host_calls: one.host_calls.unwrap_or(all.host_calls),
        }
    }

    /// The limits and the grants of the plugin called `name`.
    pub fn access_of(&self, name: &str) -> Access {
        let grants = self.grant.get(name).cloned().unwrap_or_default();
        let code_limits = grants.code.as_deref().map_or(self.limits, |code| self.limits_of(code));
        Access { limits: self.limits_of(name), grants, code_limits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_granted_is_described() {
        let all = Grants {
            read: vec!["data/tests".into()],
            scratch_mib: Some(64),
            http: vec!["GET https://example.org".into()],
            model: Some(GrantedModel::Judge),
            code: Some("python".into()),
            real_clock: true,
            real_random: true,
            ..Grants::default()
        };
        let line = "reads data/tests, writes up to 64 MiB in 1000 files of its own, sends GET https://example.org, \
                    asks the judge 16 times, runs code in python, sees real time, gets real randomness";
        assert_eq!(all.describe().join(", "), line);
        assert!(Grants::default().describe().is_empty());
    }

    #[test]
    fn access_holds_the_limits_of_the_interpreter() {
        let own = LimitOverrides { cpu_ms: Some(7), ..LimitOverrides::default() };
        let grants = Grants { code: Some("python".into()), ..Grants::default() };
        let plugins = Plugins {
            only: [("python".to_owned(), own)].into(),
            grant: [("agent".to_owned(), grants)].into(),
            ..Plugins::default()
        };
        let access = plugins.access_of("agent");
        assert_eq!((access.limits.cpu_ms, access.code_limits.cpu_ms), (Limits::default().cpu_ms, 7));
    }
}
