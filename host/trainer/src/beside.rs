//! The models beside the policy in reinforcement learning: a reference, or teacher, and a critic. What they say of a
//! batch before its update, and what they do after it.

use crate::advantage::finished;
use crate::error::TrainError;
use crate::kl::KlWeight;
use crate::loss::PolicyLoss;
use crate::loss::kl::{MEASURE, log_ratio, value};
use crate::optim::Update;
use crate::ranks::Ranks;
use crate::report::Metrics;
use crate::step::{Layout, Learner, PolicyRow, PolicySums, ValueRow, ValueSums};
use molt_core::outcome::Group;
use molt_core::settings::TrainSettings;
use molt_core::trajectory::Segment;
use molt_model::Weights;

/// The models beside the policy.
#[derive(Debug)]
pub(crate) struct Beside<'s> {
    settings: &'s TrainSettings,
    reference: Option<Learner>,
    pub(crate) critic: Option<Learner>,
    pub(crate) kl: KlWeight,
}

/// What they say of the action tokens of a batch before its update.
#[derive(Debug, Default)]
pub struct Said {
    /// Log-probabilities under the reference, segment by segment, for the loss.
    reference: Option<Vec<Vec<f32>>>,
    /// The divergence from the reference, segment after segment, for the reward. Empty if it does not count there.
    pub kl: Vec<f32>,
    /// The divergence as it is reported, summed over so many tokens, if it counts in the reward.
    divergence: (f64, usize),
    /// The weight of the divergence in the reward.
    pub kl_coef: f32,
    /// The critic's values, segment after segment; empty without one.
    pub values: Vec<f32>,
    rollouts: usize,
}

/// Steps of the critic over one batch.
#[derive(Debug, Clone, Copy)]
struct Taught {
    sums: ValueSums,
    update: Update,
    /// Of the returns, by the values before the update.
    explained_variance: Option<f64>,
}

impl<'s> Beside<'s> {
    /// With the same ranks as the policy, which comes first. `batches` is what the run has at most.
    ///
    /// # Errors
    /// If a rank is lost, or weights cannot be read.
    pub(crate) fn new(
        settings: &'s TrainSettings,
        ranks: Option<&Ranks>,
        (reference, critic): (Option<Weights>, Option<Weights>),
        batches: u64,
    ) -> Result<Self, TrainError> {
        let layout = Layout::new(settings.train.max_tokens_per_rank, &settings.fsdp);
        let temperature = settings.rollout.temperature;
        let reference =
            reference.map(|weights| Learner::reference(weights, ranks.cloned(), layout, temperature));
        let own = &settings.critic;
        let of_a_batch = own.passes.saturating_mul(own.steps_per_batch);
        let steps = batches.saturating_mul(of_a_batch as u64);
        let critic =
            critic.map(|weights| Learner::critic(weights, ranks.cloned(), &own.optim, steps, layout));
        Ok(Self {
            settings,
            reference: reference.transpose()?,
            critic: critic.transpose()?,
            kl: KlWeight::from(&settings.algo.kl),
        })
    }

    /// Whether the policy waits for the critic in the step after so many.
    pub(crate) fn is_warming_up(&self, steps: u64) -> bool {
        self.critic.is_some() && steps < self.settings.critic.warmup_steps
    }

    /// Asks them about the finished rollouts of `groups`, and the policy where its divergence counts in the reward.
    ///
    /// # Errors
    /// If what one of them says is no number, or a rank is lost.
    pub(crate) fn look(
        &mut self,
        policy: &mut Learner,
        groups: &[Group],
        step: u64,
    ) -> Result<Said, TrainError> {
        let segments: Vec<&Segment> = finished(groups).flat_map(|t| &t.segments).collect();
        let rollouts = finished(groups).count();
        let mut said = Said { kl_coef: self.kl.coefficient as f32, rollouts, ..Said::default() };
        if let Some(critic) = &mut self.critic {
            said.values = critic.values(&segments)?.concat();
            if !said.values.iter().all(|value| value.is_finite()) {
                let help = "lower critic.optim.lr, or look at critic.model";
                return Err(TrainError::NoNumber { step, model: "critic", what: "value", help });
            }
        }
        let Some(reference) = &mut self.reference else { return Ok(said) };
        let theirs = reference.logprobs(&segments)?;
        // A token that it holds for impossible has a log-ratio all the same.
        if theirs.iter().flatten().any(|logprob| logprob.is_nan()) {
            let (model, help) = match self.settings.teacher.model {
                Some(_) => ("teacher", "look at the weights of teacher.model"),
                None => ("reference", "look at the weights of reference.model, or of model.path"),
            };
            return Err(TrainError::NoNumber { step, model, what: "log-probability", help });
        }
        let kl = &self.settings.algo.kl;
        if !kl.in_reward() {
            said.reference = Some(theirs);
            return Ok(said);
        }
        let ours = policy.logprobs(&segments)?;
        if ours.iter().flatten().any(|logprob| logprob.is_nan()) {
            return Err(TrainError::LogprobNotFinite { step });
        }
        let ratios = ours.concat().into_iter().zip(theirs.concat());
        let ratios: Vec<f64> = ratios.map(|(ours, theirs)| log_ratio(ours.into(), theirs.into())).collect();
        said.divergence = (ratios.iter().map(|&d| value(MEASURE, d)).sum(), ratios.len());
        said.kl = ratios.into_iter().map(|d| value(kl.estimator(), d) as f32).collect();
        Ok(said)
    }

    /// The loss of this step.
    pub(crate) fn weigh(&self, mut loss: PolicyLoss) -> PolicyLoss {
        if let Some(kl) = &mut loss.kl {
            kl.coef = self.kl.coefficient;
        }
        loss
    }

    /// After the update of the policy: trains the critic on `lessons`, and moves the weight of the divergence, unless the
    /// policy waits for the critic and has no divergence of its own yet.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub(crate) fn learn(
        &mut self,
        lessons: &[ValueRow<'_>],
        said: &Said,
        policy: &PolicySums,
        is_warming_up: bool,
    ) -> Result<Metrics, TrainError> {
        let mut metrics = Metrics::new();
        if let Some(taught) = self.teach(lessons)? {
            taught.put(&mut metrics);
        }
        if self.reference.is_some() {
            metrics.insert("algo/kl_coef".to_owned(), self.kl.coefficient);
            let (sum, tokens) = match said.reference {
                Some(_) => (policy.kl_reference, policy.tokens),
                None => said.divergence,
            };
            if tokens > 0 {
                let kl = sum / tokens as f64;
                metrics.insert("train/kl_reference".to_owned(), kl);
                if !is_warming_up {
                    self.kl.update(kl, said.rollouts);
                }
            }
        }
        Ok(metrics)
    }

    fn teach(&mut self, lessons: &[ValueRow<'_>]) -> Result<Option<Taught>, TrainError> {
        let Some(critic) = self.critic.as_mut().filter(|_| !lessons.is_empty()) else { return Ok(None) };
        let (mut sums, mut update) = (ValueSums::default(), Update::default());
        let own = &self.settings.critic;
        for _ in 0..own.passes {
            for part in parts(lessons, own.steps_per_batch) {
                let seen;
                (seen, update) = critic.value_step(part, own.clip)?;
                sums.add(&seen);
            }
        }
        let values: Vec<f32> = lessons.iter().flat_map(|row| row.values.iter().copied()).collect();
        let returns: Vec<f32> = lessons.iter().flat_map(|row| row.returns.iter().copied()).collect();
        let explained_variance = explained_variance(&values, &returns);
        Ok(Some(Taught { sums, update, explained_variance }))
    }
}

impl Said {
    /// Gives the rows of the batch what the loss needs of it.
    pub(crate) fn attach(&self, rows: &mut [PolicyRow<'_>]) {
        for (row, theirs) in rows.iter_mut().zip(self.reference.iter().flatten()) {
            row.reference = Some(theirs.clone());
        }
    }

    /// What a critic is to learn of the rows of the batch, of which `returns` has one for every action token. None
    /// without a critic.
    pub(crate) fn lessons<'a>(&self, rows: &[PolicyRow<'a>], returns: &[f32]) -> Vec<ValueRow<'a>> {
        let mut pairs = self.values.iter().zip(returns);
        let lesson = |row: &PolicyRow<'a>| {
            let (values, returns) = pairs.by_ref().take(row.segment.actions().len()).unzip();
            ValueRow { segment: row.segment, values, returns }
        };
        if self.values.is_empty() { Vec::new() } else { rows.iter().map(lesson).collect() }
    }
}

impl Taught {
    fn put(&self, metrics: &mut Metrics) {
        let Self { sums, update, explained_variance } = self;
        let tokens = sums.tokens.max(1) as f64;
        let all = [
            ("critic/loss", sums.loss / tokens),
            ("critic/clip_fraction", sums.clipped / tokens),
            ("critic/value_mean", sums.value / tokens),
            ("critic/grad_norm", update.grad_norm),
            ("critic/lr", update.learning_rate),
        ];
        metrics.extend(all.map(|(name, value)| (name.to_owned(), value)));
        metrics.extend(explained_variance.map(|share| ("critic/explained_variance".to_owned(), share)));
    }
}

/// `1 − Var(R − V) / Var(R)` over action tokens: 1 for a critic that knows the returns, 0 for one that knows their mean.
/// None where the returns are all the same.
fn explained_variance(values: &[f32], returns: &[f32]) -> Option<f64> {
    let variance = |numbers: &[f64]| {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64
    };
    let returns: Vec<f64> = returns.iter().map(|&r| r.into()).collect();
    let errors: Vec<f64> = returns.iter().zip(values).map(|(r, &v)| r - f64::from(v)).collect();
    let whole = variance(&returns);
    (whole > 0.0).then(|| 1.0 - variance(&errors) / whole)
}

/// Splits rows into at most `count` runs of nearly equal length, none of them empty.
pub(crate) fn parts<T>(rows: &[T], count: usize) -> impl Iterator<Item = &[T]> {
    let bound = move |part: usize| part * rows.len() / count;
    (0..count).map(move |part| &rows[bound(part)..bound(part + 1)]).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_without_number_are_no_overflow() {
        let mut settings = TrainSettings::default();
        settings.critic.passes = usize::MAX;
        settings.critic.steps_per_batch = usize::MAX;
        Beside::new(&settings, None, (None, None), u64::MAX).expect("there is nothing to load");
    }

    /// By hand: returns 0, 0, 2, 2 have variance 1; errors −1, 0, 0, 1 have variance ½.
    #[test]
    fn explained_variance_is_a_share_of_that_of_the_returns() {
        let returns = [0.0, 0.0, 2.0, 2.0];
        assert_eq!(explained_variance(&[1.0, 0.0, 2.0, 1.0], &returns), Some(0.5));
        assert_eq!(explained_variance(&returns, &returns), Some(1.0));
        assert_eq!(explained_variance(&[7.0; 4], &returns), Some(0.0));
        assert_eq!(explained_variance(&[1.0, 2.0], &[3.0, 3.0]), None);
        assert_eq!(explained_variance(&[], &[]), None);
    }
}
