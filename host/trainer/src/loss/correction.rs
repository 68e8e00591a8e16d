//! The weight of a token that other weights sampled than those with which training on its batch began:
//! decoupled importance sampling (Hilton et al. 2022, Batch size-invariance for policy optimization, section 3), within a
//! band of ratios that are believed.

use super::surrogate::exp;
use molt_core::settings::{self, CorrectionLevel, CorrectionMode};
use serde::{Deserialize, Serialize};

/// How tokens are weighted by `w = π_old / π_sampled`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    pub level: CorrectionLevel,
    pub mode: CorrectionMode,
    /// The ends of the band belong to it.
    pub low: f64,
    pub high: f64,
}

/// What becomes of a token, by which its loss is multiplied; no gradient goes through it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    pub weight: f64,
    /// The mode made something else of it than its ratio.
    pub is_outside: bool,
}

impl Correction {
    /// None if the settings correct nothing.
    pub fn new(settings: &settings::Correction) -> Option<Self> {
        let (low, high) = settings.band();
        let (level, mode) = (settings.level, settings.mode);
        (level != CorrectionLevel::Off).then_some(Self { level, mode, low, high })
    }

    /// Whether a token's weight depends on all of its sequence.
    pub fn is_of_sequences(&self) -> bool {
        matches!(self.level, CorrectionLevel::Seq | CorrectionLevel::Geo)
    }

    /// Whether a sequence with these `log π_old − log π_sampled` is within the band: at the level `seq` their sum,
    /// at `geo` their mean. Without action tokens the ratio is 1, and the sequence is none of those that the share
    /// outside is of: nothing of it is trained. (labs-molt 0.1.6 counts it as outside.)
    pub fn keeps(&self, log_ratios: impl Iterator<Item = f64>) -> bool {
        let (sum, count) = log_ratios.fold((0.0, 0), |(sum, count), ratio| (sum + ratio, count + 1));
        match self.level {
            CorrectionLevel::Geo if count > 0 => self.contains(exp(sum / f64::from(count)).0),
            CorrectionLevel::Seq => self.contains(exp(sum).0),
            _ => true,
        }
    }

    /// The weight of a token of a sequence that is kept or not. With `mask`, w within the band and 0 outside, at every
    /// level; with `clip` and `trunc` w as far as the ends of the band allow.
    pub fn weight(&self, log_ratio: f64, is_kept: bool) -> Weight {
        let (ratio, _) = exp(log_ratio);
        let is_outside = match (self.is_of_sequences(), self.mode) {
            (true, _) => !is_kept,
            (false, CorrectionMode::Trunc) => ratio > self.high,
            (false, _) => !self.contains(ratio),
        };
        let weight = match self.mode {
            _ if !is_outside => ratio,
            CorrectionMode::Mask => 0.0,
            CorrectionMode::Clip => ratio.clamp(self.low, self.high),
            CorrectionMode::Trunc => self.high,
        };
        Weight { weight, is_outside }
    }

    fn contains(&self, ratio: f64) -> bool {
        // What is no number is kept, and makes the step fail.
        !(ratio < self.low || ratio > self.high)
    }
}
