//! The weight of the divergence from a reference, which may be moved so that the divergence comes near a target.

use molt_core::settings::Kl;
use serde::{Deserialize, Serialize};

/// The weight is moved by this share at most, once in a horizon.
const MOST: f64 = 0.2;

/// Rollouts of a horizon where none is given.
const HORIZON: f64 = 10_000.0;

/// The coefficient `β` of the divergence, fixed or adaptive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KlWeight {
    pub(crate) coefficient: f64,
    /// That of the settings.
    start: f64,
    target: Option<f64>,
    horizon: f64,
}

/// What a checkpoint holds of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reached {
    coefficient: f64,
    /// What an adaptive one started from.
    start: Option<f64>,
}

impl From<&Kl> for KlWeight {
    fn from(kl: &Kl) -> Self {
        let (coefficient, horizon) = (kl.coef, kl.horizon.unwrap_or(HORIZON));
        Self { coefficient, start: coefficient, target: kl.target, horizon }
    }
}

impl KlWeight {
    pub(crate) fn reached(&self) -> Reached {
        Reached { coefficient: self.coefficient, start: self.target.map(|_| self.start) }
    }

    /// Goes on with the coefficient that an adaptive one had come to from the same start. A fixed one is what the settings
    /// say now, and so is one that starts from another, or that was fixed before.
    pub(crate) fn resume(&mut self, reached: Reached) {
        if self.target.is_some() && reached.start == Some(self.start) {
            self.coefficient = reached.coefficient;
        }
    }

    /// `β ← β · (1 + clip(KL / target − 1, ±0.2) · n / horizon)` after a batch of `n` rollouts whose mean divergence was
    /// `kl` (Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences, section 2.2). A batch counts as one
    /// horizon at most, so the coefficient never changes its sign. A divergence that is no number moves nothing.
    pub(crate) fn update(&mut self, kl: f64, rollouts: usize) {
        let Some(target) = self.target.filter(|_| !kl.is_nan()) else { return };
        let error = (kl / target - 1.0).clamp(-MOST, MOST);
        self.coefficient *= 1.0 + error * (rollouts as f64 / self.horizon).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 0.1 (1 + 0.2 / 5), then (1 − 0.1 / 5), (1 − 0.2 / 5), and with a batch longer than the horizon (1 + 0.2).
    #[test]
    fn the_coefficient_follows_the_divergence() {
        let kl = Kl { coef: 0.1, target: Some(0.05), horizon: Some(100.0), ..Kl::default() };
        let mut weight = KlWeight::from(&kl);
        for (divergence, rollouts, want) in [
            (0.08, 20, 0.104),
            (0.045, 20, 0.10192),
            (-1.0, 20, 0.097_843_2),
            (0.05, 20, 0.097_843_2),
            (f64::NAN, 20, 0.097_843_2),
            (1.0, 1_000, 0.117_411_84),
        ] {
            weight.update(divergence, rollouts);
            assert!((weight.coefficient - want).abs() < 1e-12, "{weight:?} is not {want}");
        }
    }

    /// Made by running labs-molt 0.1.6.
    #[test]
    fn golden_numbers() {
        for (divergence, rollouts, want) in
            [(0.011, 100, 0.11), (0.0, 100, 0.08), (0.01, 100, 0.1), (1.0, 100, 0.12), (0.02, 10, 0.102)]
        {
            let kl = Kl { coef: 0.1, target: Some(0.01), horizon: Some(100.0), ..Kl::default() };
            let mut weight = KlWeight::from(&kl);
            weight.update(divergence, rollouts);
            assert!((weight.coefficient - want).abs() < 1e-12, "{weight:?} is not {want}");
        }
    }

    #[test]
    fn without_a_target_it_stays_and_is_that_of_the_settings() {
        let weight = |coef, target: Option<f64>| KlWeight::from(&Kl { coef, target, ..Kl::default() });
        let mut fixed = weight(0.1, None);
        fixed.update(7.0, 128);
        assert_eq!(fixed.coefficient, 0.1);
        let mut adaptive = weight(0.1, Some(1.0));
        adaptive.update(7.0, 128);
        let moved = adaptive.coefficient;
        assert!((moved - 0.1 * (1.0 + 0.2 * 0.0128)).abs() < 1e-15);
        for (now, before, want) in [
            (weight(0.1, Some(1.0)), &adaptive, moved),
            (weight(0.1, Some(2.0)), &adaptive, moved),
            (weight(0.1, None), &adaptive, 0.1),
            (weight(0.5, Some(1.0)), &adaptive, 0.5),
            (weight(0.5, Some(1.0)), &fixed, 0.5),
            (weight(0.5, None), &fixed, 0.5),
        ] {
            let mut resumed = now;
            resumed.resume(before.reached());
            assert_eq!(resumed.coefficient, want, "{now:?} after {before:?}");
        }
    }
}
