//! One optimiser step: micro-batches forward and backward, then one update.

use crate::error::TrainError;
use crate::freeze::trained;
use crate::loss::PolicyLoss;
use crate::mesh::Groups;
use crate::optim::{Optimiser, Update};
use crate::ranks::{Order, Orders, Ranks};
use crate::shards::{Shards, largest, sums};
use molt_core::ids::{Token, WeightVersion};
use molt_core::settings::{Fsdp, Optim};
use molt_core::trajectory::{Routing, Segment};
use molt_model::{Adapter, Config, Network, Unit, Weights};
use molt_torch::{Group, Traffic};
use tch::{Kind, Tensor};

/// Few enough for memory and caches, many enough for the matrix products.
const LOGIT_ROWS: usize = 256;

/// One token sequence of an optimiser step.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    pub tokens: &'a [Token],
    /// Positions in `tokens` that are trained, ascending, each at least 1: a token is predicted from those
    /// before it.
    pub targets: Vec<usize>,
    /// Says where tokens go in layers with experts; where it does not, and without one, the router does.
    pub routing: Option<&'a Routing>,
}

impl<'a> Row<'a> {
    /// A row of an order: tokens, and the positions of those that are learnt.
    fn supervised((tokens, targets): &'a (Vec<Token>, Vec<usize>)) -> Self {
        Self { tokens, targets: targets.clone(), routing: None }
    }
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
        self.ratio += other.ratio;
        self.kl += other.kl;
        self.on_policy += other.on_policy;
        self.gap += other.gap;
        self.gap_max = larger(self.gap_max, other.gap_max);
    }
}

impl PolicySums {
    /// What all ranks saw together, of which this is this rank's part; `tokens` is the number of all already.
    fn over(self, ranks: Option<&Group>) -> Result<Self, TrainError> {
        let own = [self.loss, self.clipped, self.ratio, self.kl, self.on_policy as f64, self.gap];
        let all = sums(ranks, &own)?;
        let most = largest(ranks, &[self.gap_max])?[0];
        let [loss, clipped, ratio, kl, on_policy, gap] = all[..] else { unreachable!("six sums") };
        // A maximum over ranks may lose a NaN; a sum does not.
        let gap_max = if gap.is_nan() { gap } else { most };
        Ok(Self {
            tokens: self.tokens,
            loss,
            clipped,
            ratio,
            kl,
            on_policy: on_policy as usize,
            gap,
            gap_max,
            balance: self.balance,
        })
    }
}

/// What an order has of rows.
fn owned(rows: &[Row<'_>]) -> Vec<(Vec<Token>, Vec<usize>)> {
    rows.iter().map(|row| (row.tokens.to_vec(), row.targets.clone())).collect()
}

/// The larger of two gaps; unlike `f64::max`, a NaN is the largest.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// The model being trained and its optimiser. With ranks, each holds a part: rank 0 leads, and what is asked of its
/// learner the others do too, in [`Learner::follow`], until it is dropped.
///
/// A forward pass walks the chain of the model's units and gathers the parameters of each just before it is
/// needed; no graph of autograd spans two of them. The backward pass walks it the other way, computes a layer
/// again where its graph was not kept, and scatters the gradient of each unit to those who hold it. That is what
/// FSDP2 does with hooks.
#[derive(Debug)]
pub struct Learner {
    network: Network,
    shards: Shards,
    optimiser: Optimiser,
    layout: Layout,
    temperature: f64,
    /// Weight of the load-balancing loss of layers with experts; 0 for none.
    router_aux_coef: f64,
    /// What the leader sends its orders by.
    orders: Option<Orders>,
}

/// How the work of a step is cut. None of it changes the result beyond rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Tokens of one forward and backward at most; a longer row goes alone.
    pub max_tokens_per_rank: usize,
    /// The last so many layers keep their parameters and graph for the backward pass; the others are gathered
    /// and computed again.
    pub keep_layers: usize,
    /// Targets whose logits are alive at once at most.
    pub logit_rows: usize,
}

impl Layout {
    /// Every layer keeps its graph unless `fsdp.keep_layers` says how many.
    pub fn new(max_tokens_per_rank: usize, fsdp: &Fsdp) -> Self {
        let keep_layers = fsdp.keep_layers.unwrap_or(usize::MAX);
        Self { max_tokens_per_rank, keep_layers, logit_rows: LOGIT_ROWS }
    }
}

impl Learner {
    /// `temperature` divides the logits; `total_steps` is where the learning-rate schedule ends. The weights
    /// are the same on all ranks, of which this one leads; each reads the part that it holds.
    ///
    /// # Errors
    /// If a rank is lost, the weights cannot be read, or `optim.freeze` does not fit the model.
    pub fn new(
        weights: Weights,
        ranks: Option<Ranks>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let (groups, mut orders) = ranks.map(|ranks| (ranks.groups, ranks.orders)).unzip();
        if let Some(orders) = &mut orders {
            orders.send(&Order::Begin { total_steps })?;
        }
        let mut learner = Self::part(weights, groups, optim, total_steps, layout, temperature)?;
        learner.orders = orders;
        Ok(learner)
    }

    /// What the leader's learner does, on another rank, until the leader's is dropped.
    ///
    /// # Errors
    /// As those of the leader, and if the leader is lost.
    pub fn follow(
        weights: Weights,
        ranks: Ranks,
        optim: &Optim,
        layout: Layout,
        temperature: f64,
        loss: Option<&PolicyLoss>,
    ) -> Result<(), TrainError> {
        let Ranks { groups, mut orders } = ranks;
        let Order::Begin { total_steps } = orders.receive()? else {
            return Err(TrainError::Order("the first is not the beginning".to_owned()));
        };
        let mut learner = Self::part(weights, Some(groups), optim, total_steps, layout, temperature)?;
        let out_of_turn = |what: &str| TrainError::Order(format!("{what} comes out of turn"));
        loop {
            match orders.receive()? {
                Order::Policy(rows) => {
                    let loss = loss.ok_or_else(|| out_of_turn("a step of the policy"))?;
                    let rows: Vec<PolicyRow<'_>> = rows
                        .iter()
                        .map(|(segment, advantages)| PolicyRow { segment, advantages: advantages.clone() })
                        .collect();
                    learner.policy_step(&rows, loss)?;
                }
                Order::Supervised(rows) => {
                    let rows: Vec<Row<'_>> = rows.iter().map(Row::supervised).collect();
                    learner.supervised_step(&rows)?;
                }
                Order::Loss(rows) => {
                    let rows: Vec<Row<'_>> = rows.iter().map(Row::supervised).collect();
                    learner.loss(&rows)?;
                }
                // Only the leader keeps them; here no more than a unit is whole at a time.
                Order::Parameters => {
                    for unit in learner.network.units() {
                        learner.shards.whole(&learner.network, unit)?;
                    }
                }
                Order::Balance { coefficient } => learner.router_aux_coef = coefficient,
                Order::Save { dir } => drop(learner.save(&dir)?),
                Order::Restore { dir, mesh, steps } => learner.restore(&dir, mesh, steps)?,
                Order::Begin { .. } => return Err(out_of_turn("the beginning")),
                Order::End => return Ok(()),
            }
        }
    }

    /// This rank's part. Every rank calls each method together, with the same arguments.
    fn part(
        weights: Weights,
        mut ranks: Option<Groups>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let trained = trained(weights.network(), &optim.freeze)?;
        let parallel = ranks.as_mut().map(|groups| std::mem::take(&mut groups.parallel));
        let shards = Shards::read(&weights, &trained, ranks)?;
        let network = weights.into_network().in_parallel(parallel.unwrap_or_default());
        let optimiser = Optimiser::new(shards.parameters(&network), optim, total_steps);
        Ok(Self { network, shards, optimiser, layout, temperature, router_aux_coef: 0.0, orders: None })
    }

    /// The leader's errors name the ranks that do not answer.
    fn explained(&self, error: TrainError) -> TrainError {
        match &self.orders {
            Some(orders) => orders.explained(error),
            None => error,
        }
    }

    fn order(&mut self, order: impl FnOnce() -> Order) -> Result<(), TrainError> {
        self.orders.as_mut().map_or(Ok(()), |orders| orders.send(&order()))
    }

    /// From now on the load-balancing loss of layers with experts is added, with this weight.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn balance_experts(&mut self, coefficient: f64) -> Result<(), TrainError> {
        self.router_aux_coef = coefficient;
        self.order(|| Order::Balance { coefficient })
    }

    pub fn config(&self) -> &Config {
        self.network.config()
    }

    /// Copies of the weights, whole and sorted by name; an adapter is merged into them.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn parameters(&mut self) -> Result<Vec<(String, Tensor)>, TrainError> {
        self.whole(|network, unit, parameters| network.merged(unit, &parameters))
    }

    /// What is trained in place of the weights, if anything is.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.network.adapter()
    }

    /// Copies of the parameters that can be trained, whole and sorted by name: those of the adapter if there is one.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn trainable(&mut self) -> Result<Vec<(String, Tensor)>, TrainError> {
        let own = self.network.trainable();
        self.whole(|network, unit, parameters| {
            let named = network.names(unit).into_iter().zip(parameters);
            named.filter(|(name, _)| own.contains(name)).collect()
        })
    }

    /// Copies of what `of` makes of the parameters of each unit.
    fn whole(
        &mut self,
        of: impl Fn(&Network, Unit, Vec<Tensor>) -> Vec<(String, Tensor)>,
    ) -> Result<Vec<(String, Tensor)>, TrainError> {
        self.order(|| Order::Parameters)?;
        let whole = || {
            let mut all = Vec::new();
            for unit in self.network.units() {
                let named = of(&self.network, unit, self.shards.whole(&self.network, unit)?);
                all.extend(named.into_iter().map(|(name, tensor)| (name, tensor.copy())));
            }
            all.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(all)
        };
        whole().map_err(|error| self.explained(error))
    }

    /// What this rank has sent to others since they found each other.
    pub fn traffic(&self) -> Traffic {
        self.shards.ranks().map(Group::traffic).unwrap_or_default()
    }

    /// The version of the weights as they are now.
    pub fn version(&self) -> WeightVersion {
        WeightVersion(self.optimiser.steps())
    }

    /// One step of the policy gradient over `rows`.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn policy_step(
        &mut self,
        rows: &[PolicyRow<'_>],
        loss: &PolicyLoss,
    ) -> Result<(PolicySums, Update), TrainError> {
        self.order(|| {
            let own = |row: &PolicyRow<'_>| (row.segment.clone(), row.advantages.clone());
            Order::Policy(rows.iter().map(own).collect())
        })?;
        let sums = self.policy_gradient(rows, loss).map_err(|error| self.explained(error))?;
        Ok((sums, self.update()?))
    }

    /// One step of maximum likelihood over the targets of `rows`. Returns the mean of `−log π` over them too.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn supervised_step(&mut self, rows: &[Row<'_>]) -> Result<(f64, Update), TrainError> {
        self.order(|| Order::Supervised(owned(rows)))?;
        let tokens: usize = rows.iter().map(|row| row.targets.len()).sum();
        let mut mean = 0.0;
        self.gradient(rows, |_, logprobs| {
            let loss = -logprobs.sum(logprobs.kind()) / tokens as f64;
            mean += loss.double_value(&[]);
            loss
        })
        .map_err(|error| self.explained(error))?;
        let mean = sums(self.shards.ranks(), &[mean]).map_err(|error| self.explained(error))?;
        Ok((mean[0], self.update()?))
    }

    fn update(&mut self) -> Result<Update, TrainError> {
        self.optimiser.update(self.shards.ranks()).map_err(|error| self.explained(error))
    }

    /// The gradient of the policy loss over all action tokens of `rows`.
    fn policy_gradient(&self, rows: &[PolicyRow<'_>], loss: &PolicyLoss) -> Result<PolicySums, TrainError> {
        let layout: Vec<Row<'_>> = rows
            .iter()
            .map(|row| Row {
                tokens: row.segment.tokens(),
                targets: row.segment.actions().iter().map(|action| action.position).collect(),
                routing: row.segment.routing(),
            })
            .collect();
        let tokens = layout.iter().map(|row| row.targets.len()).sum();
        let version = self.version();
        let mut own = PolicySums { tokens, ..PolicySums::default() };
        let balance = self.gradient(&layout, |targets, logprobs| {
            let actions: Vec<_> = targets.iter().map(|t| rows[t.row].segment.actions()[t.nth]).collect();
            let sampled: Vec<f32> = actions.iter().map(|action| action.logprob).collect();
            let advantages: Vec<f32> = targets.iter().map(|t| rows[t.row].advantages[t.nth]).collect();
            let (sampled, advantages) = (Tensor::from_slice(&sampled), Tensor::from_slice(&advantages));
            let output = loss.compute(logprobs, &sampled, &advantages, tokens as f64);
            let logprobs = logprobs.detach().to_kind(Kind::Double);
            let logprobs = Vec::<f64>::try_from(logprobs).expect("a vector of float64");
            for (action, logprob) in actions.iter().zip(logprobs).filter(|(a, _)| a.version == version) {
                let gap = (logprob - f64::from(action.logprob)).abs();
                own.on_policy += 1;
                own.gap += gap;
                own.gap_max = larger(own.gap_max, gap);
            }
            own.loss += output.loss.double_value(&[]);
            own.clipped += output.clipped;
            own.ratio += output.ratio;
            own.kl += output.kl;
            output.loss
        })?;
        own.balance = balance;
        own.over(self.shards.ranks())
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        // However the run ended, the others need not wait; if they cannot be told, they are lost anyway.
        let _ = self.order(|| Order::End);
    }
}

#[cfg(test)]
mod adapter;
mod balance;
#[cfg(test)]
mod experts;
mod forward;
#[cfg(test)]
mod parallel;
pub(crate) mod part;
mod pass;
#[cfg(test)]
pub(crate) mod ranks;
#[cfg(test)]
mod tests;
