//! Reward plugins.

use molt_core::chat::{Message, Task};
use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::bindings::group_reward::GroupRewardPluginPre;
use crate::bindings::reward::RewardPluginPre;
use crate::bindings::{types as wit, v0_1};
use crate::contract::{Contract, LATEST};
use crate::convert;
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::plugin::{Call, Data, Plugin};
use crate::quote;

/// A finished rollout, as a reward sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub task: Task,
    /// What the plugin is told as the task's seed: that of the sample's own rollout, in a group too.
    pub seed: u64,
    /// The whole conversation.
    pub messages: Vec<Message>,
    /// The model's last turn.
    pub completion: String,
    /// The last turn ended because it ran out of tokens.
    pub truncated: bool,
}

/// What a reward says of a rollout. All numbers are finite.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Scored {
        reward: f64,
        solved: bool,
        metrics: Vec<(String, f64)>,
    },
    /// The model's output cannot be scored: trained with the run's lowest reward.
    Invalid(String),
    /// The grader failed: not trained, and counted.
    Infra(String),
}

/// A loaded reward plugin.
#[derive(Clone)]
pub struct Reward {
    plugin: Plugin,
    component: Component,
}

/// What the component scores.
#[derive(Clone)]
enum Component {
    Single(Single),
    Group(GroupRewardPluginPre<Data>),
}

/// The world of a component that scores single rollouts.
#[derive(Clone)]
enum Single {
    V0_1(v0_1::reward::RewardPluginPre<Data>),
    V0_2(RewardPluginPre<Data>),
}

impl Reward {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let group = format!("molt:plugin/group-reward@{LATEST}");
        let is_group = component.component().get_export_index(None, &group).is_some();
        let component = match plugin.contract {
            Contract::V0_1 => {
                v0_1::reward::RewardPluginPre::new(component).map(Single::V0_1).map(Component::Single)
            }
            Contract::V0_2 if is_group => GroupRewardPluginPre::new(component).map(Component::Group),
            Contract::V0_2 => RewardPluginPre::new(component).map(Single::V0_2).map(Component::Single),
        };
        let component = component.map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// Whether it scores the rollouts of a prompt together, by [`score_group`](Self::score_group).
    pub fn scores_groups(&self) -> bool {
        matches!(self.component, Component::Group(_))
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
            Component::Single(Single::V0_1(component)) => component.instance_pre(),
            Component::Single(Single::V0_2(component)) => component.instance_pre(),
            Component::Group(component) => component.instance_pre(),
        };
        self.plugin.instantiate(component).await
    }

    /// Scores one rollout in a fresh instance.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, asked for what is not granted, returned a number that is not finite, or
    /// scores whole groups.
    pub async fn score(&self, call: Call, sample: &Sample) -> Result<Verdict, Failure> {
        let Component::Single(component) = &self.component else {
            return Err(self.misused(call, "it scores the rollouts of a prompt together"));
        };
        let mut store = self.plugin.store(call).await;
        let run = async |store: &mut _| component.score(store, to_wit(sample)).await;
        let verdict = self.plugin.run(&mut store, call.rollout, run).await?;
        from_verdict(verdict).map_err(|cause| self.plugin.failure(call.rollout, cause, Some(store.data())))
    }

    /// Scores the finished rollouts of one prompt together, in a fresh instance: one verdict per sample, in
    /// their order.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, asked for what is not granted, returned a number that is not finite or
    /// another number of verdicts, or scores single rollouts.
    pub async fn score_group(&self, call: Call, samples: &[Sample]) -> Result<Vec<Verdict>, Failure> {
        let Component::Group(component) = &self.component else {
            return Err(self.misused(call, "it scores single rollouts"));
        };
        let mut store = self.plugin.store(call).await;
        let samples: Vec<wit::Sample> = samples.iter().map(to_wit).collect();
        let run = async |store: &mut _| {
            let instance = component.instantiate_async(&mut *store).await?;
            instance.molt_plugin_group_reward().call_score_group(store, &samples).await
        };
        let verdicts = self.plugin.run(&mut store, call.rollout, run).await?;
        from_verdicts(verdicts, samples.len())
            .map_err(|cause| self.plugin.failure(call.rollout, cause, Some(store.data())))
    }

    fn misused(&self, call: Call, what: &str) -> Failure {
        self.plugin.failure(call.rollout, Cause::BadCall(what.into()), None)
    }
}

impl Single {
    async fn score(&self, store: &mut Store<Data>, sample: wit::Sample) -> wasmtime::Result<wit::Verdict> {
        match self {
            Single::V0_1(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                Ok(instance.molt_plugin_reward().call_score(store, &sample.into()).await?.into())
            }
            Single::V0_2(component) => {
                let instance = component.instantiate_async(&mut *store).await?;
                instance.molt_plugin_reward().call_score(store, &sample).await
            }
        }
    }
}

fn to_wit(sample: &Sample) -> wit::Sample {
    wit::Sample {
        task: convert::task(&sample.task, sample.seed),
        messages: convert::messages(&sample.messages),
        completion: sample.completion.clone(),
        truncated: sample.truncated,
    }
}

fn from_verdicts(verdicts: Vec<wit::Verdict>, samples: usize) -> Result<Vec<Verdict>, Cause> {
    if verdicts.len() != samples {
        let found = verdicts.len();
        return Err(Cause::BadReturn(format!("{found} verdicts of {samples} rollouts")));
    }
    verdicts.into_iter().map(from_verdict).collect()
}

fn from_verdict(verdict: wit::Verdict) -> Result<Verdict, Cause> {
    Ok(match verdict {
        wit::Verdict::Scored(grade) => {
            let reward = convert::finite(grade.reward, || "the reward".into())?;
            let solved = grade.solved.unwrap_or(reward >= 1.0);
            Verdict::Scored { reward, solved, metrics: convert::from_metrics(grade.metrics)? }
        }
        wit::Verdict::Invalid(reason) => Verdict::Invalid(quote::beginning(&reason)),
        wit::Verdict::Infra(reason) => Verdict::Infra(quote::beginning(&reason)),
    })
}
