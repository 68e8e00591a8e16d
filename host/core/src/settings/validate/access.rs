//! What can be wrong with the limits and the grants of plugins, and with the judge.

use super::{Found, count, is_empty, name, rate, say};
use crate::settings::{GrantedModel, Grants, HttpRule, Judge, LimitOverrides, Limits, Origin, Plugins};
use std::ffi::OsStr;

/// A day, in milliseconds: no call is meant to take longer.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// What a limit may be. Memory and tables of 32-bit WebAssembly end at 2^32; less than the least stack is not
/// enough for any language, and more than the most is not meant for one of thousands of instances.
const BOUNDS: [(&str, u64, u64); 10] = [
    ("memory_mib", 1, 4096),
    ("cpu_ms", 1, DAY_MS),
    ("call_s", 1, DAY_MS / 1000),
    ("fuel", 1, i64::MAX as u64),
    ("stack_kib", 64, 16 * 1024),
    ("table_elements", 1, 1 << 32),
    ("instances", 1, 1_000_000),
    ("output_kib", 1, 4 * 1024 * 1024),
    ("log_kib", 0, 1024 * 1024),
    ("host_calls", 1, i64::MAX as u64),
];

/// Where a plugin sees its scratch directory.
const SCRATCH: &str = "scratch";

impl Plugins {
    pub(super) fn check(&self, found: &mut Found) {
        if self.path.iter().any(|p| is_empty(p)) {
            say(found, "plugins.path", "holds an empty path");
        }
        rate(found, "plugins.max_error_rate", self.max_error_rate);
        count(found, "plugins.error_window", self.error_window as u64);
        limits(found, "plugins.limits", every(&self.limits));
        for (plugin, one) in &self.only {
            limits(found, &format!("plugins.only.{plugin}"), given(one));
        }
        for (plugin, grants) in &self.grant {
            grants.check(found, &format!("plugins.grant.{plugin}"));
        }
    }
}

fn limits(found: &mut Found, section: &str, values: [Option<u64>; BOUNDS.len()]) {
    for ((limit, least, most), value) in BOUNDS.into_iter().zip(values) {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            let sentence = format!("is {value}, but must be from {least} to {most}");
            say(found, &format!("{section}.{limit}"), sentence);
        }
    }
}

/// In the order of [`BOUNDS`].
fn every(limits: &Limits) -> [Option<u64>; BOUNDS.len()] {
    [
        Some(limits.memory_mib),
        Some(limits.cpu_ms),
        Some(limits.call_s),
        limits.fuel,
        Some(limits.stack_kib as u64),
        Some(limits.table_elements as u64),
        Some(limits.instances as u64),
        Some(limits.output_kib),
        Some(limits.log_kib),
        Some(limits.host_calls),
    ]
}

/// In the order of [`BOUNDS`].
fn given(limits: &LimitOverrides) -> [Option<u64>; BOUNDS.len()] {
    [
        limits.memory_mib,
        limits.cpu_ms,
        limits.call_s,
        limits.fuel,
        limits.stack_kib.map(|kib| kib as u64),
        limits.table_elements.map(|elements| elements as u64),
        limits.instances.map(|instances| instances as u64),
        limits.output_kib,
        limits.log_kib,
        limits.host_calls,
    ]
}

impl Grants {
    fn check(&self, found: &mut Found, section: &str) {
        let key = |grant: &str| format!("{section}.{grant}");
        let mut places: Vec<&OsStr> = Vec::new();
        for path in &self.read {
            match path.file_name() {
                None if is_empty(path) => say(found, &key("read"), "holds an empty path"),
                None => {
                    let sentence = format!(
                        "holds {}, which has no last name to show it under; name a directory by its own name",
                        path.display()
                    );
                    say(found, &key("read"), sentence);
                }
                Some(place) if place == SCRATCH => {
                    say(found, &key("read"), "holds a directory called scratch, the place of scratch_mib");
                }
                Some(place) if places.contains(&place) => {
                    let sentence = format!(
                        "holds two directories that the plugin would see as /{}; rename one",
                        place.to_string_lossy()
                    );
                    say(found, &key("read"), sentence);
                }
                Some(place) => places.push(place),
            }
        }
        for error in self.http.iter().filter_map(|entry| entry.parse::<HttpRule>().err()) {
            say(found, &key("http"), format!("holds a bad entry: {error}"));
        }
        let numbers = [
            ("scratch_mib", self.scratch_mib.unwrap_or(1), 1024 * 1024),
            ("scratch_files", self.scratch_files, 1_000_000),
            ("http_s", self.http_s, DAY_MS / 1000),
            ("http_kib", self.http_kib, 1024 * 1024),
            ("http_requests", self.http_requests, i64::MAX as u64),
            ("model_calls", self.model_calls, i64::MAX as u64),
        ];
        for (grant, value, most) in numbers {
            if !(1..=most).contains(&value) {
                say(found, &key(grant), format!("is {value}, but must be from 1 to {most}"));
            }
        }
        if let Some(interpreter) = &self.code {
            name(found, &key("code"), interpreter);
        }
    }
}

impl Judge {
    pub(super) fn check(&self, found: &mut Found, plugins: &Plugins) {
        match &self.url {
            None => {
                if !self.model.is_empty() {
                    say(found, "judge.model", "is set, and does nothing without judge.url: say where it is");
                }
                let asks = |grants: &Grants| grants.model == Some(GrantedModel::Judge);
                if let Some((plugin, _)) = plugins.grant.iter().find(|(_, grants)| asks(grants)) {
                    let sentence = "is judge, but there is none: judge.url says where it is";
                    say(found, &format!("plugins.grant.{plugin}.model"), sentence);
                }
            }
            Some(url) => {
                let parts = url.split_once("://").map(|(scheme, rest)| {
                    (scheme, rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path)))
                });
                let good = parts.is_some_and(|(scheme, (host, path))| {
                    Origin::new(scheme, host).is_ok()
                        && !path.contains(|c: char| c == '?' || c == '#' || c.is_whitespace())
                });
                if !good {
                    let sentence = format!(
                        "is {url:?}, but must be like http://127.0.0.1:8000/v1, without user and query"
                    );
                    say(found, "judge.url", sentence);
                }
                if self.model.is_empty() {
                    say(found, "judge.model", "is required with judge.url: the model's name at the endpoint");
                }
            }
        }
        if self.key_env.as_deref().is_some_and(|name| name.is_empty() || name.contains(['=', '\0'])) {
            say(found, "judge.key_env", "is not the name of an environment variable");
        }
        if !(1..=DAY_MS / 1000).contains(&self.request_s) {
            let sentence = format!("is {}, but must be from 1 to {}", self.request_s, DAY_MS / 1000);
            say(found, "judge.request_s", sentence);
        }
        count(found, "judge.concurrency", self.concurrency as u64);
    }
}
