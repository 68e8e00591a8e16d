//! One optimiser step: micro-batches forward and backward, then one update.

use crate::error::TrainError;
use crate::optim::{Optimiser, Update};
use crate::ranks::{Order, Orders, Role};
use crate::shards::{Shards, sums};
use molt_core::ids::{Token, WeightVersion};
use molt_core::settings::Fsdp;
use molt_core::trajectory::Routing;
use molt_model::{Adapter, Config, Network, Unit};
use molt_torch::{Group, Traffic};
use pass::{Objective, Seen, Slopes};
use std::cell::RefCell;
use std::rc::Rc;
use tch::Tensor;

pub use critic::{ValueRow, ValueSums};
pub use models::Models;
pub use policy::{PolicyRow, PolicySums};

/// Few enough for memory and caches, many enough for the matrix products.
const LOGIT_ROWS: usize = 512;

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

/// What an order has of rows.
fn owned(rows: &[Row<'_>]) -> Vec<(Vec<Token>, Vec<usize>)> {
    rows.iter().map(|row| (row.tokens.to_vec(), row.targets.clone())).collect()
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
    /// Which of the run's models it is.
    role: Role,
    /// What the leader sends its orders by, those for its other models too.
    orders: Option<Rc<RefCell<Orders>>>,
}

/// How the work of a step is cut. None of it changes the result beyond rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Tokens of one forward and backward at most; a longer row goes alone.
    pub max_tokens_per_rank: usize,
    /// The last so many layers keep their parameters and graph for the backward pass; the others are gathered
    /// and computed again.
    pub keep_layers: usize,
    /// One unit is sent while another computes.
    pub prefetch: bool,
    /// Targets whose logits are alive at once at most.
    pub logit_rows: usize,
}

impl Layout {
    /// Every layer keeps its graph unless `fsdp.keep_layers` says how many.
    pub fn new(max_tokens_per_rank: usize, fsdp: &Fsdp) -> Self {
        let keep_layers = fsdp.keep_layers.unwrap_or(usize::MAX);
        Self { max_tokens_per_rank, keep_layers, prefetch: fsdp.prefetch, logit_rows: LOGIT_ROWS }
    }
}

impl Learner {
    /// The leader's errors name the ranks that do not answer.
    fn explained(&self, error: TrainError) -> TrainError {
        match &self.orders {
            Some(orders) => orders.borrow().explained(error),
            None => error,
        }
    }

    fn order(&mut self, order: impl FnOnce() -> Order) -> Result<(), TrainError> {
        let Some(orders) = &self.orders else { return Ok(()) };
        orders.borrow_mut().send(self.role, &order())
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
        self.shards.groups().chain(self.network.parallel().groups()).map(Group::traffic).sum()
    }

    /// The version of the weights as they are now.
    pub fn version(&self) -> WeightVersion {
        WeightVersion(self.optimiser.steps())
    }

    /// One step of maximum likelihood over the targets of `rows`. Returns the mean of `−log π` over them too.
    ///
    /// # Errors
    /// If the gradient is not finite, or a rank is lost.
    pub fn supervised_step(&mut self, rows: &[Row<'_>]) -> Result<(f64, Update), TrainError> {
        self.order(|| Order::Supervised(owned(rows)))?;
        let tokens: usize = rows.iter().map(|row| row.targets.len()).sum();
        let mut mean = 0.0;
        let weight = 1.0 / tokens as f64;
        let mut loss = |_: &[Target], seen: &Seen| {
            mean -= seen.scores.iter().sum::<f64>() * weight;
            Slopes { by_score: vec![-weight; seen.scores.len()], by_entropy: None }
        };
        self.gradient(rows, &mut Objective { needs_entropy: false, loss: &mut loss })
            .map_err(|error| self.explained(error))?;
        let mean = sums(self.shards.ranks(), &[mean]).map_err(|error| self.explained(error))?;
        Ok((mean[0], self.update()?))
    }

    fn update(&mut self) -> Result<Update, TrainError> {
        let gradients = self.shards.gradients(&self.network);
        let update = self.optimiser.update(&gradients, self.shards.divided());
        self.shards.forget_gradients();
        update.map_err(|error| self.explained(error))
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        // However the run ended, the others need not wait; if they cannot be told, they are lost anyway.
        if self.role == Role::Policy {
            let _ = self.order(|| Order::End);
        }
    }
}

#[cfg(test)]
mod adapter;
mod balance;
#[cfg(test)]
mod bfloat16;
mod critic;
#[cfg(test)]
mod experts;
mod forward;
#[cfg(test)]
mod losses;
mod models;
#[cfg(test)]
mod parallel;
pub(crate) mod part;
mod pass;
mod policy;
#[cfg(test)]
pub(crate) mod ranks;
#[cfg(test)]
pub(crate) mod tests;
