//! What settings come to that are unset because their value follows from others.

use super::{CorrectionLevel, TrainSettings};

impl TrainSettings {
    /// Each unset key of a bound with the value that the run has in its place. `min_group` is what the estimator needs.
    pub fn implied(&self, min_group: u32) -> Vec<(&'static str, String)> {
        let (algo, filter) = (&self.algo, &self.rollout.filter);
        let (low, high) = algo.clip();
        let (has_kl, corrects) = (algo.kl.coef > 0.0, algo.correction.level != CorrectionLevel::Off);
        let band = algo.correction.band();
        let number = |value: Option<f64>| value.map(|value| value.to_string());
        let all = [
            ("algo.clip_low", algo.clip_low.is_none(), number(low)),
            ("algo.clip_high", algo.clip_high.is_none(), number(high)),
            ("algo.correction.low", algo.correction.low.is_none(), number(corrects.then_some(band.0))),
            ("algo.correction.high", algo.correction.high.is_none(), number(corrects.then_some(band.1))),
            (
                "algo.kl.estimator",
                algo.kl.estimator.is_none(),
                has_kl.then(|| format!("{:?}", algo.kl.estimator()).to_lowercase()),
            ),
            ("rollout.min_group", self.rollout.min_group.is_none(), Some(min_group.to_string())),
            (
                "rollout.filter.max_refills",
                filter.max_refills.is_none(),
                filter.is_on().then(|| filter.most_refills(self.rollout.batch_size).to_string()),
            ),
            (
                "train.max_logprob_gap",
                self.train.max_logprob_gap.is_none(),
                number(Some(self.max_logprob_gap())),
            ),
        ];
        all.into_iter()
            .filter(|(_, is_unset, _)| *is_unset)
            .filter_map(|(key, _, value)| Some((key, value?)))
            .collect()
    }

    /// The gap of log-probabilities at which the run stops.
    pub fn max_logprob_gap(&self) -> f64 {
        self.train.max_logprob_gap.unwrap_or(self.model.compute.max_logprob_gap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::FilterBy;

    #[test]
    fn what_is_unset_has_the_value_of_what_it_follows_from() {
        let implied = |change: &dyn Fn(&mut TrainSettings)| {
            let mut settings = TrainSettings::default();
            change(&mut settings);
            let all = settings.implied(2).into_iter().map(|(key, value)| format!("{key} {value}"));
            all.collect::<Vec<_>>().join(", ")
        };
        let rest = "rollout.min_group 2, train.max_logprob_gap 0.01";
        assert_eq!(implied(&|_| ()), format!("algo.clip_low 0.2, algo.clip_high 0.2, {rest}"));
        assert_eq!(implied(&|s| s.algo.loss = "cispo".into()), format!("algo.clip_high 4, {rest}"));
        let given = |s: &mut TrainSettings| {
            (s.algo.loss, s.algo.clip_low) = ("gspo".into(), Some(0.1));
            s.algo.correction.level = CorrectionLevel::Geo;
            s.algo.kl.coef = 0.1;
            s.rollout.filter.by = FilterBy::PassRate;
            (s.rollout.min_group, s.train.max_logprob_gap) = (Some(3), Some(1.0));
        };
        assert_eq!(
            implied(&given),
            "algo.clip_high 0.0004, algo.correction.low 0.99, algo.correction.high 1.01, algo.kl.estimator k2, \
             rollout.filter.max_refills 160"
        );
    }
}
