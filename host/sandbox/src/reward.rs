//! Reward plugins.

use molt_core::chat::{Message, Task};
use wasmtime::component::InstancePre;

use crate::bindings::reward::{self as wit, RewardPluginPre};
use crate::convert;
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::plugin::{Call, Data, Plugin};
use crate::quote;

/// A finished rollout, as a reward sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub task: Task,
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
    component: RewardPluginPre<Data>,
}

impl Reward {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = RewardPluginPre::new(component).map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// Scores one rollout in a fresh instance.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, asked for what is not granted, or returned a number that is not finite.
    pub async fn score(&self, call: Call, sample: &Sample) -> Result<Verdict, Failure> {
        let mut store = self.plugin.store(call.seed).await;
        let sample = wit::Sample {
            task: convert::task(&sample.task, call.seed),
            messages: convert::messages(&sample.messages),
            completion: sample.completion.clone(),
            truncated: sample.truncated,
        };
        let run = async |store: &mut _| {
            let instance = self.component.instantiate_async(&mut *store).await?;
            instance.molt_plugin_reward().call_score(store, &sample).await
        };
        let verdict = self.plugin.run(&mut store, call.rollout, run).await?;
        from_verdict(verdict).map_err(|cause| self.plugin.failure(call.rollout, cause, Some(store.data())))
    }
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
