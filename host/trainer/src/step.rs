//! One optimiser step: micro-batches forward and backward, then one update.

use crate::error::TrainError;
use crate::loss::PolicyLoss;
use crate::optim::{AdamW, Update};
use molt_core::ids::{Token, WeightVersion};
use molt_core::microbatch::micro_batches;
use molt_core::settings::Optim;
use molt_core::trajectory::Segment;
use molt_model::Decoder;
use tch::{Kind, Tensor};

/// Logits that are alive at once at most, as a number of elements: 64 MiB in float32, a few times over.
const MAX_LOGITS: usize = 1 << 24;

/// One token sequence of an optimiser step.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    pub tokens: &'a [Token],
    /// Positions in `tokens` that are trained, ascending, each at least 1: a token is predicted from those
    /// before it.
    pub targets: Vec<usize>,
}

/// A trained token: target `nth` of row `row` of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub row: usize,
    pub nth: usize,
}

/// A segment, and the advantage of each of its action tokens.
#[derive(Debug, Clone)]
pub struct PolicyRow<'a> {
    pub segment: &'a Segment,
    pub advantages: Vec<f32>,
}

/// What a policy step saw: sums over its action tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicySums {
    pub tokens: usize,
    /// Sum of the token losses over the number of tokens.
    pub loss: f64,
    pub clipped: f64,
    pub ratio: f64,
    pub kl: f64,
    /// Tokens that were sampled by exactly the weights that this step trains.
    pub on_policy: usize,
    /// Sum and maximum of `|log π_train − log π_rollout|` over the on-policy tokens.
    pub gap: f64,
    pub gap_max: f64,
}

impl PolicySums {
    /// Takes in another step: `loss` becomes the mean over the tokens of both.
    pub fn add(&mut self, other: &Self) {
        let tokens = self.tokens + other.tokens;
        let weighted = self.loss * self.tokens as f64 + other.loss * other.tokens as f64;
        self.loss = weighted / tokens.max(1) as f64;
        self.tokens = tokens;
        self.clipped += other.clipped;
        self.ratio += other.ratio;
        self.kl += other.kl;
        self.on_policy += other.on_policy;
        self.gap += other.gap;
        self.gap_max = larger(self.gap_max, other.gap_max);
    }
}

/// The larger of two gaps; unlike `f64::max`, a NaN is the largest.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// The model being trained and its optimiser.
#[derive(Debug)]
pub struct Learner {
    decoder: Decoder,
    optimiser: AdamW,
    micro_batch_tokens: usize,
    temperature: f64,
    max_logits: usize,
}

impl Learner {
    /// `micro_batch_tokens` bounds one forward and backward, padding included; `temperature` divides the logits;
    /// `total_steps` is where the learning-rate schedule ends.
    pub fn new(
        mut decoder: Decoder,
        optim: &Optim,
        total_steps: u64,
        micro_batch_tokens: usize,
        temperature: f64,
    ) -> Self {
        decoder.requires_grad(true);
        let optimiser = AdamW::new(decoder.parameters(), optim, total_steps);
        Self { decoder, optimiser, micro_batch_tokens, temperature, max_logits: MAX_LOGITS }
    }

    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The version of the weights as they are now.
    pub fn version(&self) -> WeightVersion {
        WeightVersion(self.optimiser.steps())
    }

    /// One step of the policy gradient over `rows`.
    pub fn policy_step(
        &mut self,
        rows: &[PolicyRow<'_>],
        loss: &PolicyLoss,
    ) -> Result<(PolicySums, Update), TrainError> {
        self.optimiser.zero_grad();
        let sums = self.policy_gradient(rows, loss);
        Ok((sums, self.optimiser.update()?))
    }

    /// One step of maximum likelihood over the targets of `rows`. Returns the mean of `−log π` over them too.
    pub fn supervised_step(&mut self, rows: &[Row<'_>]) -> Result<(f64, Update), TrainError> {
        self.optimiser.zero_grad();
        let tokens: usize = rows.iter().map(|row| row.targets.len()).sum();
        let mut mean = 0.0;
        self.accumulate(rows, |_, logprobs| {
            let loss = -logprobs.sum(logprobs.kind()) / tokens as f64;
            mean += loss.double_value(&[]);
            loss
        });
        Ok((mean, self.optimiser.update()?))
    }

    /// Adds the gradient of the policy loss over all action tokens of `rows` to the parameters' gradients.
    fn policy_gradient(&self, rows: &[PolicyRow<'_>], loss: &PolicyLoss) -> PolicySums {
        let layout: Vec<Row<'_>> = rows
            .iter()
            .map(|row| Row {
                tokens: row.segment.tokens(),
                targets: row.segment.actions().iter().map(|action| action.position).collect(),
            })
            .collect();
        let tokens = layout.iter().map(|row| row.targets.len()).sum();
        let version = self.version();
        let mut sums = PolicySums { tokens, ..PolicySums::default() };
        self.accumulate(&layout, |targets, logprobs| {
            let actions: Vec<_> = targets.iter().map(|t| rows[t.row].segment.actions()[t.nth]).collect();
            let sampled: Vec<f32> = actions.iter().map(|action| action.logprob).collect();
            let advantages: Vec<f32> = targets.iter().map(|t| rows[t.row].advantages[t.nth]).collect();
            let (sampled, advantages) = (Tensor::from_slice(&sampled), Tensor::from_slice(&advantages));
            let output = loss.compute(logprobs, &sampled, &advantages, tokens as f64);
            let logprobs = logprobs.detach().to_kind(Kind::Double);
            let logprobs = Vec::<f64>::try_from(logprobs).expect("a vector of float64");
            for (action, logprob) in actions.iter().zip(logprobs).filter(|(a, _)| a.version == version) {
                let gap = (logprob - f64::from(action.logprob)).abs();
                sums.on_policy += 1;
                sums.gap += gap;
                sums.gap_max = larger(sums.gap_max, gap);
            }
            sums.loss += output.loss.double_value(&[]);
            sums.clipped += output.clipped;
            sums.ratio += output.ratio;
            sums.kl += output.kl;
            output.loss
        });
        sums
    }

    /// Runs every row through the model and adds the gradient of the sum of `loss` to the parameters'
    /// gradients. `loss` gets targets and their log-probabilities, shape `[n]`, each target once, and returns a
    /// scalar: their share of a sum over all targets, however they are split.
    fn accumulate(&self, rows: &[Row<'_>], mut loss: impl FnMut(&[Target], &Tensor) -> Tensor) {
        // What follows the last target predicts nothing that is trained.
        let lengths: Vec<usize> = rows.iter().map(|row| row.targets.last().copied().unwrap_or(0)).collect();
        let chunk = (self.max_logits / self.decoder.config().vocab_size).max(1);
        for batch in micro_batches(&lengths, self.micro_batch_tokens) {
            let width = lengths[batch[0]];
            let mut ids = vec![0_i64; batch.len() * width];
            let (mut targets, mut places, mut labels) = (Vec::new(), Vec::new(), Vec::new());
            for (line, &row) in batch.iter().enumerate() {
                let tokens = rows[row].tokens;
                for (id, &token) in ids[line * width..].iter_mut().zip(&tokens[..lengths[row]]) {
                    *id = i64::from(token);
                }
                for (nth, &position) in rows[row].targets.iter().enumerate() {
                    targets.push(Target { row, nth });
                    places.push((line * width + position - 1) as i64);
                    labels.push(i64::from(tokens[position]));
                }
            }
            if targets.is_empty() {
                continue;
            }
            let ids = Tensor::from_slice(&ids).view([batch.len() as i64, width as i64]);
            let hidden =
                self.decoder.hidden(&ids).flatten(0, 1).index_select(0, &Tensor::from_slice(&places));
            // The head is differentiated chunk by chunk against a copy of its input, which collects the
            // gradient for the layers below: only one chunk of logits is alive.
            let leaf = hidden.detach().set_requires_grad(true);
            let labels = Tensor::from_slice(&labels).unsqueeze(1);
            for start in (0..targets.len()).step_by(chunk) {
                let count = chunk.min(targets.len() - start);
                let part = |t: &Tensor| t.narrow(0, start as i64, count as i64);
                let logits = self.decoder.logits(&part(&leaf)) / self.temperature;
                let logprobs = logits.log_softmax(-1, None).gather(1, &part(&labels), false).squeeze_dim(1);
                loss(&targets[start..start + count], &logprobs).backward();
            }
            (&hidden * leaf.grad()).sum(hidden.kind()).backward();
        }
    }
}

#[cfg(test)]
mod tests;
