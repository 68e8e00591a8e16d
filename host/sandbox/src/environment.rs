//! Environment plugins.

use molt_core::chat::{Message, Task};
use molt_core::ids::RolloutId;
use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use crate::bindings::environment::{self as wit, EnvironmentPlugin, EnvironmentPluginPre};
use crate::bindings::types;
use crate::convert;
use crate::error::{Cause, Failure, LoadError};
use crate::info::Info;
use crate::plugin::{Call, Data, Plugin};
use crate::quote;

/// A tool call that was parsed from the model's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    pub arguments_json: String,
}

/// One turn of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The sampled tokens as text, special tokens left out.
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
    /// The turn ended because it ran out of tokens.
    pub truncated: bool,
}

/// What the environment answers. All numbers are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// Messages for the model's next turn.
    pub messages: Vec<Message>,
    /// The reward of this step; the rollout's is the sum.
    pub reward: Option<f64>,
    pub solved: Option<bool>,
    /// The episode is over.
    pub done: bool,
    pub metrics: Vec<(String, f64)>,
}

/// A loaded environment plugin.
#[derive(Clone)]
pub struct Environment {
    plugin: Plugin,
    component: EnvironmentPluginPre<Data>,
}

impl Environment {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = EnvironmentPluginPre::new(component).map_err(|error| plugin.mismatch(&error))?;
        Ok(Self { plugin, component })
    }

    pub fn info(&self) -> &Info {
        &self.plugin.info
    }

    /// Begins an episode in an instance of its own.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, or asked for what is not granted.
    pub async fn open(&self, call: Call, task: &Task) -> Result<Episode, Failure> {
        let mut store = self.plugin.store(call).await;
        let task = convert::task(task, call.seed);
        let run = async |store: &mut Store<Data>| {
            let instance = self.component.instantiate_async(&mut *store).await?;
            let episodes = instance.molt_plugin_environment().episode();
            let episode = episodes.call_constructor(store, &task).await?;
            Ok((instance, episode))
        };
        let (instance, episode) = self.plugin.run(&mut store, call.rollout, run).await?;
        Ok(Episode { plugin: self.plugin.clone(), rollout: call.rollout, store, instance, episode })
    }
}

/// An open episode. Dropping it drops its instance.
pub struct Episode {
    plugin: Plugin,
    rollout: Option<RolloutId>,
    store: Store<Data>,
    instance: EnvironmentPlugin,
    episode: ResourceAny,
}

impl Episode {
    /// The messages of the first prompt. Called once, before any step.
    ///
    /// # Errors
    /// The plugin failed, or reported that it cannot start this task.
    pub async fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        let run = async |store: &mut Store<Data>| {
            self.instance.molt_plugin_environment().episode().call_reset(store, self.episode).await
        };
        let answer = self.plugin.run(&mut self.store, self.rollout, run).await?;
        let messages = answer.map_err(|failure| self.failure(reported(&failure)))?;
        Ok(convert::from_messages(messages))
    }

    /// Answers one turn of the model. After a failure the episode cannot go on.
    ///
    /// # Errors
    /// The plugin failed, reported that it cannot go on, or returned a number that is not finite.
    pub async fn step(&mut self, action: &Action) -> Result<Transition, Failure> {
        let action = wit::Action {
            text: action.text.clone(),
            tool_calls: action
                .tool_calls
                .iter()
                .map(|call| types::ToolCall {
                    name: call.name.clone(),
                    arguments_json: call.arguments_json.clone(),
                })
                .collect(),
            truncated: action.truncated,
        };
        let run = async |store: &mut Store<Data>| {
            self.instance.molt_plugin_environment().episode().call_step(store, self.episode, &action).await
        };
        let answer = self.plugin.run(&mut self.store, self.rollout, run).await?;
        let answer = answer.map_err(|failure| reported(&failure));
        answer.and_then(from_transition).map_err(|cause| self.failure(cause))
    }

    fn failure(&self, cause: Cause) -> Failure {
        self.plugin.failure(self.rollout, cause, Some(self.store.data()))
    }
}

/// What the environment said itself.
fn reported(failure: &types::Failure) -> Cause {
    Cause::Reported(quote::beginning(&failure.message))
}

fn from_transition(transition: wit::Transition) -> Result<Transition, Cause> {
    let reward = transition.reward.map(|reward| convert::finite(reward, || "the step's reward".into()));
    Ok(Transition {
        messages: convert::from_messages(transition.messages),
        reward: reward.transpose()?,
        solved: transition.solved,
        done: transition.done,
        metrics: convert::from_metrics(transition.metrics)?,
    })
}
