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
    /// The run stops when more than this share of the last `error_window` rollouts failed in a plugin, or were
    /// not scored by any.
    pub max_error_rate: f64,
    /// How many of the latest rollouts the error rate is taken over.
    pub error_window: usize,
    /// Limits of every plugin.
    pub limits: Limits,
    /// Limits of single plugins by name, e.g. [plugins.only.math] cpu_ms = 500.
    pub only: BTreeMap<String, LimitOverrides>,
}

impl Default for Plugins {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            max_error_rate: 0.2,
            error_window: 64,
            limits: Limits::default(),
            only: BTreeMap::new(),
        }
    }
}

/// What one plugin instance may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Linear memory of one instance, in MiB.
    pub memory_mib: u64,
    /// CPU time of one call, in milliseconds.
    pub cpu_ms: u64,
    /// Data that one call may return, in KiB.
    pub output_kib: u64,
    /// What one instance may print, in KiB; the rest is cut off.
    pub log_kib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_mib: 256, cpu_ms: 2000, output_kib: 8192, log_kib: 64 }
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
    /// Data that one call may return, in KiB.
    pub output_kib: Option<u64>,
    /// What one instance may print, in KiB.
    pub log_kib: Option<u64>,
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
            output_kib: one.output_kib.unwrap_or(all.output_kib),
            log_kib: one.log_kib.unwrap_or(all.log_kib),
        }
    }
}
