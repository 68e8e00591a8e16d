//! One step of the policy gradient.

use super::pass::{Objective, Seen, Slopes};
use super::{Learner, Row, Target};
use crate::error::TrainError;
use crate::loss::{Given, PolicyLoss, Sequence, Token as Action};
use crate::optim::Update;
use crate::ranks::{Order, OwnedRow};
use crate::shards::{largest, sums};
use molt_core::trajectory::Segment;
use molt_torch::Group;

/// A segment, and what is known of each of its action tokens.
#[derive(Debug, Clone)]
pub struct PolicyRow<'a> {
    pub segment: &'a Segment,
    pub advantages: Vec<f32>,
    /// Their log-probabilities under the weights that training on their batch began with; none if those are the
    /// weights of this step.
    pub old: Option<Vec<f32>>,
    /// Their log-probabilities under the reference model, if there is one.
    pub reference: Option<Vec<f32>>,
    /// Their losses, if a plugin gives them.
    pub given: Option<Vec<Given>>,
}

impl<'a> PolicyRow<'a> {
    /// A row of which nothing more is known.
    pub fn new(segment: &'a Segment, advantages: Vec<f32>) -> Self {
        Self { segment, advantages, old: None, reference: None, given: None }
    }

    /// Its segment as a row of the model, of which the action tokens are the targets.
    pub(super) fn layout(segment: &'a Segment) -> Row<'a> {
        Row {
            tokens: segment.tokens(),
            targets: segment.actions().iter().map(|action| action.position).collect(),
            routing: segment.routing(),
        }
    }

    /// What is known of action `nth`, now that its log-probability is this.
    fn action(&self, nth: usize, logprob: f64) -> Action {
        let of = |values: &Option<Vec<f32>>| values.as_ref().map(|values| f64::from(values[nth]));
        Action {
            logprob,
            sampled: self.segment.actions()[nth].logprob.into(),
            old: of(&self.old),
            reference: of(&self.reference),
            advantage: self.advantages[nth].into(),
            given: self.given.as_ref().map(|given| given[nth]),
        }
    }
}

/// What a policy step saw: sums over its action tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PolicySums {
    pub tokens: usize,
    /// What is minimised: the token losses, weighted as the aggregation says, less the entropy's part.
    pub loss: f64,
    pub clipped: f64,
    pub dual_clipped: f64,
    pub advantage: f64,
    pub ratio: f64,
    pub kl: f64,
    /// The divergence from the reference, as it is reported.
    pub kl_reference: f64,
    pub entropy: f64,
    /// What the correction compares with its band, tokens or sequences, and how many of them are outside.
    pub units: usize,
    pub outside: usize,
    /// Tokens that were sampled by exactly the weights that this step trains.
    pub on_policy: usize,
    /// Sum and maximum of `|log π_train − log π_rollout|` over the on-policy tokens.
    pub gap: f64,
    pub gap_max: f64,
    /// The load-balancing loss before its coefficient, the mean over the layers with experts: as many as a token's
    /// experts if all get the same number of tokens, and 0 if there is none.
    pub balance: f64,
}

impl PolicySums {
    /// Takes in another step: `loss` becomes the mean over the tokens of both.
    pub fn add(&mut self, other: &Self) {
        let tokens = self.tokens + other.tokens;
        let weighted = self.loss * self.tokens as f64 + other.loss * other.tokens as f64;
        self.loss = weighted / tokens.max(1) as f64;
        let weighted = self.balance * self.tokens as f64 + other.balance * other.tokens as f64;
        self.balance = weighted / tokens.max(1) as f64;
        self.tokens = tokens;
        self.clipped += other.clipped;
        self.dual_clipped += other.dual_clipped;
        self.advantage += other.advantage;
        self.ratio += other.ratio;
        self.kl += other.kl;
        self.kl_reference += other.kl_reference;
        self.entropy += other.entropy;
        self.units += other.units;
        self.outside += other.outside;
        self.on_policy += other.on_policy;
        self.gap += other.gap;
        self.gap_max = larger(self.gap_max, other.gap_max);
    }
}

impl PolicySums {
    /// What all ranks saw together, of which this is this rank's part; `tokens` and `units` are of all already.
    fn over(self, ranks: Option<&Group>) -> Result<Self, TrainError> {
        let Self { loss, clipped, dual_clipped, advantage, ratio, kl, kl_reference, entropy, gap, .. } = self;
        let counts = [self.on_policy as f64, self.outside as f64];
        let means = [loss, clipped, dual_clipped, advantage, ratio, kl, kl_reference, entropy, gap];
        let own = [&means[..], &counts].concat();
        let all = sums(ranks, &own)?;
        let most = largest(ranks, &[self.gap_max])?[0];
        let [
            loss,
            clipped,
            dual_clipped,
            advantage,
            ratio,
            kl,
            kl_reference,
            entropy,
            gap,
            on_policy,
            outside,
        ] = all[..]
        else {
            unreachable!("eleven sums")
        };
        // A maximum over ranks may lose a NaN; a sum does not.
        let gap_max = if gap.is_nan() { gap } else { most };
        Ok(Self {
            loss,
            clipped,
            dual_clipped,
            advantage,
            ratio,
            kl,
            kl_reference,
            entropy,
            on_policy: on_policy as usize,
            outside: outside as usize,
            gap,
            gap_max,
            ..self
        })
    }
}

/// The larger of two gaps; unlike `f64::max`, a NaN is the largest.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

impl Learner {
    /// One step of the policy gradient over `rows`.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn policy_step(
        &mut self,
        rows: &[PolicyRow<'_>],
        loss: &PolicyLoss,
    ) -> Result<(PolicySums, Update), TrainError> {
        self.order(|| Order::Policy { rows: rows.iter().map(OwnedRow::from).collect(), loss: *loss })?;
        let sums = self.policy_gradient(rows, loss).map_err(|error| self.explained(error))?;
        Ok((sums, self.update()?))
    }

    /// The gradient of the policy loss over all action tokens of `rows`.
    pub(super) fn policy_gradient(
        &self,
        rows: &[PolicyRow<'_>],
        loss: &PolicyLoss,
    ) -> Result<PolicySums, TrainError> {
        let layout: Vec<Row<'_>> = rows.iter().map(|row| PolicyRow::layout(row.segment)).collect();
        let lengths: Vec<usize> = layout.iter().map(|row| row.targets.len()).collect();
        let weights = loss.weights(&lengths);
        let sequences = self.sequences(rows, &layout, loss)?;
        let by_sequence = loss.correction.is_some_and(|correction| correction.is_of_sequences());
        let tokens = lengths.iter().sum();
        let units = match loss.correction {
            None => 0,
            Some(_) if by_sequence => lengths.iter().filter(|&&length| length > 0).count(),
            Some(_) => tokens,
        };
        let version = self.version();
        let mut own = PolicySums { tokens, units, ..PolicySums::default() };
        let mut of_targets = |targets: &[Target], seen: &Seen| {
            let (mut by_score, mut by_entropy) = (Vec::with_capacity(targets.len()), Vec::new());
            for ((target, &logprob), &entropy) in targets.iter().zip(&seen.scores).zip(&seen.entropies) {
                let (row, weight) = (&rows[target.row], weights[target.row]);
                let token = loss.token(&row.action(target.nth, logprob), &sequences[target.row]);
                let entropy_coef = if token.is_masked { 0.0 } else { loss.entropy_coef };
                own.loss += weight * (token.loss - entropy_coef * entropy);
                own.clipped += f64::from(u8::from(token.policy.is_clipped));
                own.dual_clipped += f64::from(u8::from(token.policy.is_dual_clipped));
                own.advantage += f64::from(row.advantages[target.nth]);
                own.ratio += token.policy.ratio;
                own.kl += token.kl;
                own.kl_reference += token.kl_reference;
                own.entropy += entropy;
                // A sequence is outside with all of its tokens: it counts with its first.
                own.outside += usize::from(token.is_outside && (!by_sequence || target.nth == 0));
                by_score.push(weight * token.slope);
                by_entropy.push(-weight * entropy_coef);
                let action = row.segment.actions()[target.nth];
                if action.version == version {
                    let gap = (logprob - f64::from(action.logprob)).abs();
                    own.on_policy += 1;
                    own.gap += gap;
                    own.gap_max = larger(own.gap_max, gap);
                }
            }
            Slopes { by_score, by_entropy: (loss.entropy_coef != 0.0).then_some(by_entropy) }
        };
        let balance =
            self.gradient(&layout, &mut Objective { needs_entropy: true, loss: &mut of_targets })?;
        own.balance = balance;
        own.over(self.shards.ranks())
    }

    /// What the tokens of each row have in common. If the loss turns on it, a forward pass comes first: a row's
    /// tokens may be on several ranks, and their logits are not all alive at once.
    fn sequences(
        &self,
        rows: &[PolicyRow<'_>],
        layout: &[Row<'_>],
        loss: &PolicyLoss,
    ) -> Result<Vec<Sequence>, TrainError> {
        if !loss.is_of_sequences() {
            return Ok(vec![Sequence::default(); rows.len()]);
        }
        let is_known = |row: &PolicyRow<'_>| row.old.is_some();
        let present = match loss.needs_present(rows.iter().any(is_known), rows.iter().all(is_known)) {
            true => self.of_targets(layout)?,
            // The old ones are all that it turns on.
            false => rows.iter().map(|row| vec![0.0; row.advantages.len()]).collect(),
        };
        let of_row = |(row, present): (&PolicyRow<'_>, &Vec<f64>)| {
            let tokens = present.iter().enumerate().map(|(nth, &logprob)| row.action(nth, logprob));
            loss.sequence(&tokens.collect::<Vec<_>>())
        };
        Ok(rows.iter().zip(&present).map(of_row).collect())
    }
}
