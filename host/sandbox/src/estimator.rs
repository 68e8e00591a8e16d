//! Estimator plugins.

use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::bindings::estimator::{self as wit, Credit, EstimatorPluginPre};
use crate::bindings::v0_1;
use crate::contract::Contract;
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::parameter::{Parameter, declared};
use crate::plugin::{Call, Data, Plugin};

/// One training batch, flat, over action tokens only. Segments follow each other in the per-token arrays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EstimatorBatch {
    /// One per rollout.
    pub rewards: Vec<f32>,
    /// The prompt group of each rollout: 0, 1, … without gaps.
    pub groups: Vec<u32>,
    /// The rollout of each segment.
    pub segment_rollouts: Vec<u32>,
    /// Where each segment's action tokens begin, and last the number of all action tokens.
    pub segment_offsets: Vec<u32>,
    /// The turn of each action token.
    pub turns: Vec<u32>,
    /// What each turn earned, rollout after rollout. A scored rollout's sum to its reward; those of one that could not
    /// be scored may sum to less.
    pub turn_rewards: Vec<f32>,
    /// Where each rollout's `turn_rewards` begin, and last the number of all of them.
    pub turn_offsets: Vec<u32>,
    /// log π − log π_ref of each action token; empty without a reference model.
    pub kl: Vec<f32>,
    /// The critic's value at each action token; empty without a critic.
    pub values: Vec<f32>,
    /// What a KL penalty in the reward is multiplied by.
    pub kl_coef: f32,
    /// The values of the estimator's parameters, as [`parameter_values`](crate::parameter_values) gives them.
    pub parameters: Vec<f64>,
}

/// What an estimator needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Traits {
    /// It compares the rollouts of one prompt.
    pub needs_group: bool,
    pub needs_values: bool,
    /// It puts the KL penalty into the reward, or learns from it alone.
    pub uses_kl: bool,
    /// The host whitens the advantages over all action tokens of the batch.
    pub whiten: bool,
    /// What a run may set.
    pub parameters: Vec<Parameter>,
}

/// One finite number per action token each.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub advantages: Vec<f32>,
    /// The target of a critic.
    pub returns: Vec<f32>,
}

impl EstimatorBatch {
    /// Number of action tokens.
    fn tokens(&self) -> usize {
        last(&self.segment_offsets)
    }

    /// Whether lengths and indices fit together, so that a plugin may rely on them.
    fn check(&self) -> Result<(), String> {
        let tokens = self.tokens();
        let rollouts = self.rewards.len();
        let expect = |what: &str, found: usize, expected: usize| {
            if found == expected {
                Ok(())
            } else {
                Err(format!("{what} has {found} entries, expected {expected}"))
            }
        };
        expect("groups", self.groups.len(), rollouts)?;
        expect("segment-offsets", self.segment_offsets.len(), self.segment_rollouts.len() + 1)?;
        expect("turns", self.turns.len(), tokens)?;
        expect("turn-offsets", self.turn_offsets.len(), rollouts + 1)?;
        expect("turn-rewards", self.turn_rewards.len(), last(&self.turn_offsets))?;
        for (what, array) in [("kl", &self.kl), ("values", &self.values)] {
            if !array.is_empty() {
                expect(what, array.len(), tokens)?;
            }
        }
        for (what, offsets) in [("segment", &self.segment_offsets), ("turn", &self.turn_offsets)] {
            if offsets.first() != Some(&0) || !offsets.is_sorted() {
                return Err(format!("{what}-offsets do not begin at 0 or fall"));
            }
        }
        if self.segment_rollouts.iter().any(|&rollout| rollout as usize >= rollouts) {
            return Err("a segment belongs to a rollout that does not exist".into());
        }
        let groups = self.groups.iter().max().map_or(0, |&last| last as usize + 1);
        let mut seen = vec![false; groups.min(rollouts + 1)];
        for &group in &self.groups {
            match seen.get_mut(group as usize) {
                Some(seen) => *seen = true,
                None => return Err(format!("group {group} of {rollouts} rollouts leaves a gap")),
            }
        }
        if !seen.iter().all(|&seen| seen) {
            return Err("the groups are not numbered without gaps".into());
        }
        self.check_turns()?;
        let arrays = [
            ("rewards", &self.rewards),
            ("turn-rewards", &self.turn_rewards),
            ("kl", &self.kl),
            ("values", &self.values),
        ];
        if let Some((what, _)) = arrays.iter().find(|(_, array)| !all_finite(array)) {
            return Err(format!("{what} are not all finite"));
        }
        let parameters = self.parameters.iter().all(|value| value.is_finite());
        if parameters && self.kl_coef.is_finite() {
            Ok(())
        } else {
            Err("kl-coef and parameters are not all finite".into())
        }
    }

    /// Whether every action token's turn is one of its rollout's.
    fn check_turns(&self) -> Result<(), String> {
        for (&rollout, ends) in self.segment_rollouts.iter().zip(self.segment_offsets.windows(2)) {
            let rollout = rollout as usize;
            let turns = self.turn_offsets[rollout + 1] - self.turn_offsets[rollout];
            let tokens = &self.turns[ends[0] as usize..ends[1] as usize];
            if let Some(turn) = tokens.iter().copied().max().filter(|&turn| turn >= turns) {
                return Err(format!("an action token is of turn {turn}, and rollout {rollout} has {turns}"));
            }
        }
        Ok(())
    }

    /// One number per action token.
    fn broadcast(&self, what: &str, credit: Credit) -> Result<Vec<f32>, Cause> {
        let (given, per, expected) = match &credit {
            Credit::PerRollout(given) => (given, "rollout", self.rewards.len()),
            Credit::PerToken(given) => (given, "action token", self.tokens()),
        };
        if given.len() != expected {
            let found = given.len();
            return Err(Cause::BadReturn(format!(
                "{what} has {found} numbers, expected {expected}, one per {per}"
            )));
        }
        if !all_finite(given) {
            let first = given.iter().enumerate().find(|(_, number)| !number.is_finite());
            let (at, number) = first.expect("invariant: one of them is not finite");
            return Err(Cause::NotFinite(format!("{what} of {per} {at} is {number}")));
        }
        Ok(match credit {
            Credit::PerToken(tokens) => tokens,
            Credit::PerRollout(rollouts) => self
                .segment_rollouts
                .iter()
                .zip(self.segment_offsets.windows(2))
                .flat_map(|(&rollout, ends)| {
                    std::iter::repeat_n(rollouts[rollout as usize], (ends[1] - ends[0]) as usize)
                })
                .collect(),
        })
    }
}

/// Without a way out of the loop, which the compiler then does many numbers at a time.
fn all_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(true, |all, number| all & number.is_finite())
}

/// The number of entries that `offsets` divide.
fn last(offsets: &[u32]) -> usize {
    offsets.last().map_or(0, |&end| end as usize)
}

/// A loaded estimator plugin.
#[derive(Clone)]
pub struct Estimator {
    plugin: Plugin,
    component: Component,
}

/// The world of the component.
#[derive(Clone)]
enum Component {
    V0_1(v0_1::estimator::EstimatorPluginPre<Data>),
    V0_2(EstimatorPluginPre<Data>),
}

impl Component {
    async fn describe(&self, store: &mut Store<Data>) -> wasmtime::Result<wit::Traits> {
        match self {
            Component::V0_1(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                Ok(instance.molt_plugin_estimator().call_describe(store).await?.into())
            }
            Component::V0_2(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                instance.molt_plugin_estimator().call_describe(store).await
            }
        }
    }

    async fn estimate(
        &self,
        store: &mut Store<Data>,
        batch: wit::Batch<'_>,
    ) -> wasmtime::Result<Result<wit::Estimates, String>> {
        match self {
            Component::V0_1(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                let answer = instance.molt_plugin_estimator().call_estimate(store, batch.into()).await?;
                Ok(answer.map(Into::into))
            }
            Component::V0_2(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                instance.molt_plugin_estimator().call_estimate(store, batch).await
            }
        }
    }
}

impl Estimator {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = match plugin.contract {
            Contract::V0_1 => v0_1::estimator::EstimatorPluginPre::new(component).map(Component::V0_1),
            Contract::V0_2 => EstimatorPluginPre::new(component).map(Component::V0_2),
        };
        let component = component.map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// The interpreter that it was granted, as it was loaded.
    pub fn interpreter(&self) -> Option<&Info> {
        self.plugin.interpreter()
    }

    /// Makes an instance and drops it, to measure how long that takes.
    ///
    /// # Errors
    /// The plugin crashed or hit a limit.
    pub async fn instantiate(&self) -> Result<(), Failure> {
        let component = match &self.component {
            Component::V0_1(component) => component.instance_pre(),
            Component::V0_2(component) => component.instance_pre(),
        };
        self.plugin.instantiate(component).await
    }

    /// What the estimator needs, and what a run may set.
    ///
    /// # Errors
    /// The plugin crashed or hit a limit, or declares parameters that make no sense.
    pub async fn traits(&self) -> Result<Traits, Failure> {
        let mut store = self.plugin.store(Call::NONE).await;
        let run = async |store: &mut Store<Data>| self.component.describe(store).await;
        let wit::Traits { needs_group, needs_values, uses_kl, whiten, parameters } =
            self.plugin.run(&mut store, None, run).await?;
        let parameters =
            declared(parameters).map_err(|cause| self.plugin.failure(None, cause, Some(store.data())))?;
        Ok(Traits { needs_group, needs_values, uses_kl, whiten, parameters })
    }

    /// The advantage and the return of every action token. The same batch gives the same bits.
    ///
    /// # Errors
    /// The batch does not fit together; the plugin crashed, hit a limit or reported a failure; or what it
    /// returned is of the wrong length or not finite.
    pub async fn estimate(&self, batch: &EstimatorBatch) -> Result<Estimate, Failure> {
        batch.check().map_err(|what| self.plugin.failure(None, Cause::BadCall(what), None))?;
        let call = async |store: &mut Store<Data>| self.component.estimate(store, to_wit(batch)).await;
        let checked = |found: wit::Estimates| {
            Ok(Estimate {
                advantages: batch.broadcast("the advantages", found.advantages)?,
                returns: batch.broadcast("the returns", found.returns)?,
            })
        };
        self.plugin.numbers(batch.tokens() + batch.rewards.len(), call, checked).await
    }
}

fn to_wit(batch: &EstimatorBatch) -> wit::Batch<'_> {
    wit::Batch {
        rewards: &batch.rewards,
        groups: &batch.groups,
        segment_rollouts: &batch.segment_rollouts,
        segment_offsets: &batch.segment_offsets,
        turns: &batch.turns,
        turn_rewards: &batch.turn_rewards,
        turn_offsets: &batch.turn_offsets,
        kl: &batch.kl,
        values: &batch.values,
        kl_coef: batch.kl_coef,
        parameters: &batch.parameters,
    }
}
