//! The models of a run, each a learner of its own: the policy, a reference that is never trained, and a critic. On
//! ranks that follow, all three are served by one loop.

use super::{Layout, Learner, PolicyRow, Row};
use crate::error::TrainError;
use crate::freeze::trained;
use crate::mesh::Groups;
use crate::optim::Optimiser;
use crate::ranks::{Order, OwnedRow, OwnedValueRow, Ranks, Role};
use crate::shards::Shards;
use molt_core::settings::Optim;
use molt_model::Weights;
use std::collections::{BTreeMap, BTreeSet};

/// The weights of the models of a run, and how those that are trained are moved.
#[derive(Debug)]
pub struct Models<'a> {
    pub policy: (Weights, &'a Optim),
    pub reference: Option<Weights>,
    /// Weights with a value head.
    pub critic: Option<(Weights, &'a Optim)>,
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
        Self::leading(Role::Policy, ranks, total_steps, |groups| {
            Self::part(weights, groups, optim, total_steps, layout, temperature)
        })
    }

    /// A model that is not trained, such as a reference or a teacher, with ranks of which this one leads.
    ///
    /// # Errors
    /// If a rank is lost, or the weights cannot be read.
    pub fn reference(
        weights: Weights,
        ranks: Option<Ranks>,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        Self::leading(Role::Reference, ranks, 0, |groups| Self::frozen(weights, groups, layout, temperature))
    }

    /// A critic of weights with a value head. It comes after the policy, whose ranks it shares.
    ///
    /// # Errors
    /// As those of [`Learner::new`].
    pub fn critic(
        weights: Weights,
        ranks: Option<Ranks>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
    ) -> Result<Self, TrainError> {
        Self::leading(Role::Critic, ranks, total_steps, |groups| {
            Self::part(weights, groups, optim, total_steps, layout, 1.0)
        })
    }

    fn leading(
        role: Role,
        ranks: Option<Ranks>,
        total_steps: u64,
        part: impl FnOnce(Option<Groups>) -> Result<Self, TrainError>,
    ) -> Result<Self, TrainError> {
        let Some(ranks) = ranks else { return part(None).map(|learner| learner.with_role(role)) };
        ranks.orders.borrow_mut().send(role, &Order::Begin { total_steps })?;
        let mut learner = part(Some(ranks.groups(role)?))?.with_role(role);
        learner.orders = Some(ranks.orders);
        Ok(learner)
    }

    fn with_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// What the leader's learners do, on another rank, until that of the policy is dropped.
    ///
    /// # Errors
    /// As those of the leader, and if the leader is lost. After those that all ranks have together, and that change
    /// nothing, it goes on until the leader has ended the run.
    pub fn follow(
        models: Models<'_>,
        ranks: Ranks,
        layout: Layout,
        temperature: f64,
    ) -> Result<(), TrainError> {
        let Models { policy, mut reference, mut critic } = models;
        let mut policy = Some(policy);
        let mut learners: BTreeMap<Role, Self> = BTreeMap::new();
        let mut failed = None;
        let out_of_turn = |what: &str| TrainError::Order(format!("{what} comes out of turn"));
        loop {
            let (role, order) = ranks.orders.borrow_mut().receive()?;
            match order {
                Order::Begin { total_steps } => {
                    let groups = Some(ranks.groups(role)?);
                    let begin = |(weights, optim): (Weights, &Optim), groups, temperature| {
                        Self::part(weights, groups, optim, total_steps, layout, temperature)
                    };
                    let model = match role {
                        Role::Policy => policy.take().map(|policy| begin(policy, groups, temperature)),
                        Role::Critic => critic.take().map(|critic| begin(critic, groups, 1.0)),
                        Role::Reference => {
                            reference.take().map(|weights| Self::frozen(weights, groups, layout, temperature))
                        }
                    };
                    let model = model.ok_or_else(|| out_of_turn("the beginning of a model"))??;
                    learners.insert(role, model.with_role(role));
                }
                Order::End => return failed.map_or(Ok(()), Err),
                order => {
                    let model = learners.get_mut(&role);
                    let model =
                        model.ok_or_else(|| out_of_turn("an order for a model that has not begun"))?;
                    let is_save = matches!(order, Order::Save { .. });
                    match model.obey(order) {
                        Ok(()) => {}
                        // The leader knows of it, and may ask for the weights yet.
                        Err(error @ TrainError::GradientNotFinite { .. }) => failed = failed.or(Some(error)),
                        Err(error) if is_save && !error.loses_ranks() => failed = failed.or(Some(error)),
                        Err(error) => return Err(ranks.orders.borrow().explained(error)),
                    }
                }
            }
        }
    }

    fn obey(&mut self, order: Order) -> Result<(), TrainError> {
        match order {
            Order::Policy { rows, loss } => {
                let rows: Vec<PolicyRow<'_>> = rows.iter().map(OwnedRow::borrow).collect();
                self.policy_step(&rows, &loss).map(drop)
            }
            Order::Logprobs(segments) => self.logprobs(&segments.iter().collect::<Vec<_>>()).map(drop),
            Order::Values(segments) => self.values(&segments.iter().collect::<Vec<_>>()).map(drop),
            Order::Value { rows, clip } => {
                let rows: Vec<_> = rows.iter().map(OwnedValueRow::borrow).collect();
                self.value_step(&rows, clip).map(drop)
            }
            Order::Supervised(rows) => {
                let rows: Vec<Row<'_>> = rows.iter().map(Row::supervised).collect();
                self.supervised_step(&rows).map(drop)
            }
            Order::Loss(rows) => {
                let rows: Vec<Row<'_>> = rows.iter().map(Row::supervised).collect();
                self.loss(&rows).map(drop)
            }
            // Only the leader keeps them; here no more than a unit is whole at a time.
            Order::Parameters => {
                let units = self.network.units();
                units.into_iter().try_for_each(|unit| self.shards.whole(&self.network, unit).map(drop))
            }
            Order::Balance { coefficient } => {
                self.router_aux_coef = coefficient;
                Ok(())
            }
            Order::Save { dir } => self.save(&dir).map(drop),
            Order::Restore { dir, mesh, steps } => self.restore(&dir, mesh, steps),
            Order::Begin { .. } | Order::End => unreachable!("invariant: not for a model"),
        }
    }

    /// This rank's part. Every rank calls each method together, with the same arguments.
    pub(super) fn part(
        weights: Weights,
        ranks: Option<Groups>,
        optim: &Optim,
        total_steps: u64,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let trained = trained(weights.network(), &optim.freeze)?;
        Self::assemble(weights, &trained, ranks, (optim, total_steps), layout, temperature)
    }

    /// This rank's part of a model that is not trained: no gradients, no moments.
    pub(super) fn frozen(
        weights: Weights,
        ranks: Option<Groups>,
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let none = BTreeSet::new();
        Self::assemble(weights, &none, ranks, (&Optim::default(), 0), layout, temperature)
    }

    fn assemble(
        weights: Weights,
        trained: &BTreeSet<String>,
        mut ranks: Option<Groups>,
        (optim, total_steps): (&Optim, u64),
        layout: Layout,
        temperature: f64,
    ) -> Result<Self, TrainError> {
        let parallel = ranks.as_mut().map(|groups| std::mem::take(&mut groups.parallel));
        let shards = Shards::read(&weights, trained, ranks)?;
        let network = weights.into_network().in_parallel(parallel.unwrap_or_default());
        let optimiser = Optimiser::new(shards.parameters(&network), optim, total_steps);
        let role = Role::Policy;
        Ok(Self { network, shards, optimiser, layout, temperature, router_aux_coef: 0.0, role, orders: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::ValueRow;
    use crate::step::ranks::{flat, with_store};
    use crate::step::tests::{LOSS, decoder, layout, model, optim, relative_difference, rows, segment};
    use molt_core::trajectory::Segment;

    /// The policy, a reference of other weights, and a critic.
    fn weights() -> [Weights; 3] {
        let reference = Weights::from(model("0.2", false));
        [Weights::from(decoder("0.3")), reference, Weights::from(decoder("0.3")).with_value_head(3)]
    }

    /// What all three say before and after a step of two, and the weights at the end.
    fn work(ranks: Option<&Ranks>) -> (Vec<Vec<f32>>, Vec<f64>) {
        let [policy, reference, critic] = weights();
        let layout = layout(40);
        let mut policy = Learner::new(policy, ranks.cloned(), &optim(), 20, layout, 0.7).expect("a policy");
        policy.balance_experts(0.0).expect("nobody is lost");
        let mut reference = Learner::reference(reference, ranks.cloned(), layout, 0.7).expect("a reference");
        let mut critic = Learner::critic(critic, ranks.cloned(), &optim(), 20, layout).expect("a critic");
        let all: Vec<_> = (0..5).map(|n| segment(n, [3 + n, 4, n % 3, 5])).collect();
        let segments: Vec<&Segment> = all.iter().map(|(segment, _)| segment).collect();
        let mut said = Vec::new();
        for _ in 0..2 {
            let values = critic.values(&segments).expect("values");
            for model in [&mut policy, &mut reference] {
                said.push(model.logprobs(&segments).expect("log-probabilities").concat());
            }
            said.push(values.concat());
            policy.policy_step(&rows(&all), &LOSS).expect("a step");
            let pairs = segments.iter().zip(&values);
            let rows: Vec<ValueRow<'_>> = pairs
                .map(|(segment, values)| {
                    let returns = values.iter().map(|value| value + 0.5).collect();
                    ValueRow { segment, values: values.clone(), returns }
                })
                .collect();
            critic.value_step(&rows, 0.2).expect("a step");
        }
        // A step that no rank could make changes nothing, and all go on.
        let (segment, advantages) = &all[0];
        let mut broken = PolicyRow::new(segment, advantages.clone());
        broken.advantages.fill(f32::NAN);
        let error = policy.policy_step(&[broken], &LOSS).expect_err("there is no such gradient");
        assert!(matches!(error, TrainError::GradientNotFinite { .. }), "{error}");
        let whole =
            [&mut policy, &mut critic].map(|model| flat(&model.parameters().expect("nobody is lost")));
        (said, whole.concat())
    }

    #[test]
    fn ranks_that_follow_serve_all_models() {
        let (expected, weights_after) = work(None);
        assert_eq!(expected[1], expected[4], "a reference does not move");
        assert!(expected[0] != expected[3] && expected[2] != expected[5], "the others do");
        assert!(expected[1] != expected[0]);
        for size in [2, 3] {
            let found = with_store(size, |store, group| {
                let leads = group.rank() == 0;
                let ranks = Ranks::at(store.port(), (group.rank(), size));
                if leads {
                    return Some(work(Some(&ranks)));
                }
                let [policy, reference, critic] = weights();
                let optim = optim();
                let (policy, critic) = ((policy, &optim), Some((critic, &optim)));
                let models = Models { policy, reference: Some(reference), critic };
                let error =
                    Learner::follow(models, ranks, layout(40), 0.7).expect_err("a step could not be made");
                assert!(matches!(error, TrainError::GradientNotFinite { .. }), "{error}");
                None
            });
            let (said, after) = found.into_iter().flatten().next().expect("the leader's");
            for (said, expected) in said.iter().zip(&expected) {
                for (a, b) in said.iter().zip(expected) {
                    assert!((a - b).abs() < 1e-4, "{a} is not {b}, on {size} ranks");
                }
            }
            let difference = relative_difference(&after, &weights_after);
            assert!(difference < 1e-4, "{size} ranks: {difference:e}");
        }
    }
}
