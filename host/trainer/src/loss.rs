//! The policy loss: pure functions of log-probabilities and advantages.
//!
//! Everything is per action token. Context has no place here: it was never selected, so nothing that stands there can
//! reach the loss. A loss is given with its derivative by the token's log-probability, by
//! hand and in float64; what a loss needs of its whole sequence is known before its tokens are looked at, so
//! tokens may come in any order and in any parts.

pub mod correction;
pub mod kl;
pub mod surrogate;
#[cfg(test)]
pub(crate) mod tests;
pub mod value;

use correction::{Correction, Weight};
use kl::KlLoss;
use molt_core::settings::{Aggregation, Importance, KlIn, NativeLoss, TrainSettings};
use serde::{Deserialize, Serialize};
use surrogate::{Surrogate, Value};

/// What is minimised: the policy loss, less the entropy, plus the divergence from a reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PolicyLoss {
    /// None if a plugin gives the loss of each token.
    pub surrogate: Option<Surrogate>,
    /// What the policy's probability of a token is compared with.
    pub importance: Importance,
    pub correction: Option<Correction>,
    pub aggregation: Aggregation,
    /// By what [`Aggregation::Constant`] divides the sum over the tokens of a sequence.
    pub max_length: f64,
    /// Weight of the mean entropy, which is maximised.
    pub entropy_coef: f64,
    pub kl: Option<KlLoss>,
}

/// What is known of an action token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Token {
    pub logprob: f64,
    /// When it was sampled.
    pub sampled: f64,
    /// When training on its batch began; none if that is now.
    pub old: Option<f64>,
    /// Under the reference, if there is one.
    pub reference: Option<f64>,
    pub advantage: f64,
    /// What a plugin says of it, if it gives the loss.
    pub given: Option<Given>,
}

/// The loss of a token and its derivative by the token's log-probability, as a plugin gives them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Given {
    pub loss: f64,
    pub slope: f64,
}

/// What is known of the sequence of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sequence {
    /// The mean of `log π` less what it is compared with.
    pub log_ratio: f64,
    /// Within the band of the correction.
    pub is_kept: bool,
}

impl Default for Sequence {
    fn default() -> Self {
        Self { log_ratio: 0.0, is_kept: true }
    }
}

/// The loss of an action token, before aggregation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLoss {
    /// The policy loss, as the correction weighs it, and the divergence from the reference, which is not weighed.
    pub loss: f64,
    /// Its derivative by the token's log-probability.
    pub slope: f64,
    /// Before the correction.
    pub policy: Value,
    /// `log π_sampled − log π`, the estimate k1 of the divergence of the sampling policy from the present one.
    pub kl: f64,
    /// The divergence of the present policy from the reference, as it is reported: [`kl::MEASURE`].
    pub kl_reference: f64,
    pub is_outside: bool,
    /// Nothing is learnt from it: neither divergence nor entropy of a token that is left out count, or a batch that is left
    /// out whole would be trained by them alone.
    pub is_masked: bool,
}

impl From<&TrainSettings> for PolicyLoss {
    fn from(settings: &TrainSettings) -> Self {
        let algo = &settings.algo;
        let kl = &algo.kl;
        let is_in_loss = kl.coef > 0.0 && kl.r#in == KlIn::Loss;
        let (low, high) = algo.clip();
        let (low, high) = (low.unwrap_or(0.0), high.unwrap_or(0.0));
        let surrogate = algo.native_loss().map(|native| match native {
            NativeLoss::Ppo => Surrogate::Ppo { low, high, dual: algo.dual_clip },
            NativeLoss::Gspo => Surrogate::Gspo { low, high },
            NativeLoss::Cispo => Surrogate::Cispo { high },
            NativeLoss::Importance => Surrogate::Importance,
        });
        Self {
            surrogate,
            importance: algo.importance,
            correction: Correction::new(&algo.correction),
            aggregation: algo.aggregation,
            max_length: settings.rollout.max_new_tokens as f64,
            entropy_coef: algo.entropy_coef,
            kl: is_in_loss.then(|| KlLoss { estimator: kl.estimator(), coef: kl.coef }),
        }
    }
}

impl PolicyLoss {
    /// By what the loss of each token of a sequence is multiplied, for sequences with so many action tokens each: all
    /// of the optimiser step, so that the sum over micro-batches and ranks does not depend on how it was split.
    pub fn weights(&self, lengths: &[usize]) -> Vec<f64> {
        let tokens = lengths.iter().sum::<usize>() as f64;
        let sequences = lengths.iter().filter(|&&length| length > 0).count() as f64;
        let weight = |&length: &usize| match self.aggregation {
            _ if length == 0 => 0.0,
            Aggregation::TokenMean => 1.0 / tokens,
            Aggregation::SeqMeanTokenMean => 1.0 / (sequences * length as f64),
            Aggregation::SeqMeanTokenSum => 1.0 / sequences,
            Aggregation::Constant => 1.0 / (sequences * self.max_length),
        };
        lengths.iter().map(weight).collect()
    }

    /// Whether the loss of a token turns on the others of its sequence.
    pub fn is_of_sequences(&self) -> bool {
        self.surrogate.is_some_and(Surrogate::is_of_sequences)
            || self.correction.is_some_and(|correction| correction.is_of_sequences())
    }

    /// Whether [`PolicyLoss::sequence`] reads the present log-probabilities, where those of the beginning are known of
    /// `some` sequences or of `all`. Where they are not, they are the present ones.
    pub fn needs_present(&self, some: bool, all: bool) -> bool {
        let compares = some || self.importance == Importance::Sampled;
        self.surrogate.is_some_and(Surrogate::is_of_sequences) && compares
            || self.correction.is_some_and(|correction| correction.is_of_sequences()) && !all
    }

    /// What the tokens of a sequence have in common.
    pub fn sequence(&self, tokens: &[Token]) -> Sequence {
        let log_ratios = tokens.iter().map(|token| token.logprob - self.against(token));
        let corrected = |correction: Correction| correction.keeps(tokens.iter().map(Token::correction));
        Sequence {
            log_ratio: log_ratios.sum::<f64>() / tokens.len().max(1) as f64,
            is_kept: self.correction.is_none_or(corrected),
        }
    }

    /// The loss of one token. Its weight is not in it, nor is the entropy.
    pub fn token(&self, token: &Token, sequence: &Sequence) -> TokenLoss {
        let (logprob, against) = (token.logprob, self.against(token));
        let policy = match (self.surrogate, token.given) {
            (Some(surrogate), _) => surrogate.value(logprob, against, sequence.log_ratio, token.advantage),
            (None, given) => {
                let Given { loss, slope } = given.unwrap_or(Given { loss: f64::NAN, slope: f64::NAN });
                Value { loss, slope, ratio: surrogate::exp(logprob - against).0, ..Value::default() }
            }
        };
        let Weight { weight, is_outside } = match self.correction {
            Some(correction) => correction.weight(token.correction(), sequence.is_kept),
            None => Weight { weight: 1.0, is_outside: false },
        };
        let mut all = TokenLoss {
            loss: select(weight, policy.loss),
            slope: select(weight, policy.slope),
            policy,
            kl: token.sampled - logprob,
            kl_reference: 0.0,
            is_outside,
            is_masked: weight == 0.0,
        };
        if let (Some(kl), Some(reference)) = (self.kl, token.reference) {
            let d = kl::log_ratio(logprob, reference);
            all.kl_reference = kl::value(kl::MEASURE, d);
            if !all.is_masked {
                all.loss += kl.coef * kl::value(kl.estimator, d);
                all.slope += kl.coef * kl::slope(kl.estimator, d);
            }
        }
        all
    }

    fn against(&self, token: &Token) -> f64 {
        match self.importance {
            Importance::Sampled => token.sampled,
            Importance::Old => token.old.unwrap_or(token.logprob),
        }
    }
}

impl Token {
    /// `log π_old − log π_sampled`.
    fn correction(&self) -> f64 {
        self.old.unwrap_or(self.logprob) - self.sampled
    }
}

/// What has no weight is not there, whatever it is.
fn select(weight: f64, value: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { weight * value }
}
