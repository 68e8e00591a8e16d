//! What can be wrong with the settings of advantages and losses.

use super::{Found, maybe_count, name, number, say};
use crate::settings::{Algo, Correction, CorrectionLevel, CorrectionMode, Importance, NativeLoss};

impl Algo {
    pub(super) fn check(&self, found: &mut Found) {
        name(found, "algo.estimator", &self.estimator);
        name(found, "algo.loss", &self.loss);
        self.check_bounds(found);
        number(found, "algo.entropy_coef", self.entropy_coef, |_| true, "a finite number");
        self.correction.check(found);
        self.kl.check(found);
        // What a plugin compares with it is asked itself.
        let is_native = self.native_loss().is_some();
        if is_native
            && self.correction.level != CorrectionLevel::Off
            && self.importance == Importance::Sampled
        {
            let sentence = "is set, but algo.importance sampled corrects already, and twice would be wrong: use \
                            algo.importance old with it";
            say(found, "algo.correction.level", sentence);
        }
    }

    /// A bound that the loss does not have is refused.
    fn check_bounds(&self, found: &mut Found) {
        let native = self.native_loss();
        let is_cispo = native == Some(NativeLoss::Cispo);
        let bounds = [
            ("algo.clip_low", self.clip_low, native.and_then(NativeLoss::clip_low)),
            ("algo.clip_high", self.clip_high, native.and_then(NativeLoss::clip_high)),
        ];
        for (key, given, usual) in bounds {
            let Some(given) = given else { continue };
            if usual.is_none() {
                say(
                    found,
                    key,
                    format!("is set, and algo.loss {} has no such bound: leave it out", self.loss),
                );
            } else if is_cispo {
                number(found, key, given, |c| c > 0.0, "above 0");
            } else {
                number(found, key, given, |c| c > 0.0 && c < 1.0, "between 0 and 1, both excluded");
            }
        }
        if let Some(dual) = self.dual_clip {
            number(found, "algo.dual_clip", dual, |c| c > 1.0, "above 1");
            if native != Some(NativeLoss::Ppo) {
                let sentence = format!("is set, and algo.loss {} has no such bound: leave it out", self.loss);
                say(found, "algo.dual_clip", sentence);
            }
        }
    }
}

impl Correction {
    fn check(&self, found: &mut Found) {
        let masks = self.mode == CorrectionMode::Mask;
        let (is_low, is_high) = (self.low.is_some(), self.high.is_some());
        if self.level == CorrectionLevel::Off {
            let unused = [
                ("algo.correction.mode", !masks),
                ("algo.correction.low", is_low),
                ("algo.correction.high", is_high),
                ("algo.correction.max_masked_batches", self.max_masked_batches.is_some()),
            ];
            for (key, _) in unused.into_iter().filter(|(_, is_set)| *is_set) {
                say(found, key, "is set, and does nothing while algo.correction.level is off: give a level");
            }
            return;
        }
        if self.level != CorrectionLevel::Token && !masks {
            let sentence = "must be mask unless algo.correction.level is token: a sequence whose ratio is outside has no \
                            other weight to give its tokens";
            say(found, "algo.correction.mode", sentence);
        }
        if self.mode == CorrectionMode::Trunc && is_low {
            say(found, "algo.correction.low", "is set, and trunc has no lower end: leave it out");
        }
        if self.max_masked_batches.is_some() && !masks {
            let sentence = "is set, and only algo.correction.mode mask leaves anything out: leave it out";
            say(found, "algo.correction.max_masked_batches", sentence);
        }
        maybe_count(found, "algo.correction.max_masked_batches", self.max_masked_batches);
        // Tokens of the present weights have a ratio of 1.
        let (low, high) = self.band();
        number(found, "algo.correction.low", low, |low| (0.0..=1.0).contains(&low), "from 0 to 1");
        number(found, "algo.correction.high", high, |high| high >= 1.0, "at least 1");
    }
}
