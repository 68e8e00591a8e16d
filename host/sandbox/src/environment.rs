//! Environment plugins.

use molt_core::chat::{Message, Task};
use molt_core::ids::RolloutId;
use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use crate::bindings::environment::{self as wit, EnvironmentPlugin, EnvironmentPluginPre};
use crate::bindings::{types, v0_1};
use crate::contract::Contract;
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
    component: Component,
}

/// The world of the component.
#[derive(Clone)]
enum Component {
    V0_1(v0_1::environment::EnvironmentPluginPre<Data>),
    V0_2(EnvironmentPluginPre<Data>),
}

enum Instance {
    V0_1(v0_1::environment::EnvironmentPlugin),
    V0_2(EnvironmentPlugin),
}

impl Environment {
    pub(crate) fn new(plugin: Plugin, component: InstancePre<Data>) -> Result<Self, LoadError> {
        let component = match plugin.contract {
            Contract::V0_1 => v0_1::environment::EnvironmentPluginPre::new(component).map(Component::V0_1),
            Contract::V0_2 => EnvironmentPluginPre::new(component).map(Component::V0_2),
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

    /// Begins an episode in an instance of its own.
    ///
    /// # Errors
    /// The plugin crashed, hit a limit, or asked for what is not granted.
    pub async fn open(&self, call: Call, task: &Task) -> Result<Episode, Failure> {
        let mut store = self.plugin.store(call).await;
        let task = convert::task(task, call.seed);
        let run = async |store: &mut Store<Data>| {
            let instance = self.component.instantiate(store).await?;
            let episode = instance.construct(store, &task).await?;
            Ok((instance, episode))
        };
        let (instance, episode) = self.plugin.run(&mut store, call.rollout, run).await?;
        Ok(Episode { plugin: self.plugin.clone(), rollout: call.rollout, store, instance, episode })
    }
}

impl Component {
    async fn instantiate(&self, store: &mut Store<Data>) -> wasmtime::Result<Instance> {
        Ok(match self {
            Component::V0_1(component) => Instance::V0_1(component.instantiate_async(store).await?),
            Component::V0_2(component) => Instance::V0_2(component.instantiate_async(store).await?),
        })
    }
}

impl Instance {
    async fn construct(&self, store: &mut Store<Data>, task: &types::Task) -> wasmtime::Result<ResourceAny> {
        match self {
            Instance::V0_1(i) => i.molt_plugin_environment().episode().call_constructor(store, task).await,
            Instance::V0_2(i) => i.molt_plugin_environment().episode().call_constructor(store, task).await,
        }
    }

    async fn reset(
        &self,
        store: &mut Store<Data>,
        episode: ResourceAny,
    ) -> wasmtime::Result<Result<Vec<types::Message>, types::Failure>> {
        match self {
            Instance::V0_1(i) => i.molt_plugin_environment().episode().call_reset(store, episode).await,
            Instance::V0_2(i) => i.molt_plugin_environment().episode().call_reset(store, episode).await,
        }
    }

    async fn step(
        &self,
        store: &mut Store<Data>,
        episode: ResourceAny,
        action: wit::Action,
    ) -> wasmtime::Result<Result<wit::Transition, types::Failure>> {
        match self {
            Instance::V0_1(i) => {
                let episodes = i.molt_plugin_environment().episode();
                Ok(episodes.call_step(store, episode, &action.into()).await?.map(Into::into))
            }
            Instance::V0_2(i) => {
                i.molt_plugin_environment().episode().call_step(store, episode, &action).await
            }
        }
    }
}

/// An open episode. Dropping it drops its instance.
pub struct Episode {
    plugin: Plugin,
    rollout: Option<RolloutId>,
    store: Store<Data>,
    instance: Instance,
    episode: ResourceAny,
}

impl Episode {
    /// The messages of the first prompt. Called once, before any step.
    ///
    /// # Errors
    /// The plugin failed, or reported that it cannot start this task.
    pub async fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        let run = async |store: &mut Store<Data>| self.instance.reset(store, self.episode).await;
        let answer = self.plugin.run(&mut self.store, self.rollout, run).await?;
        let answer = answer.map_err(|failure| reported(&failure));
        answer.and_then(convert::said).map_err(|cause| self.failure(cause))
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
        let run = async |store: &mut Store<Data>| self.instance.step(store, self.episode, action).await;
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
    if transition.messages.iter().any(|message| message.role == types::Role::Assistant) {
        return Err(Cause::BadReturn("a message of the assistant, which only the model says".into()));
    }
    let reward = transition.reward.map(|reward| convert::finite(reward, || "the step's reward".into()));
    Ok(Transition {
        messages: convert::said(transition.messages)?,
        reward: reward.transpose()?,
        solved: transition.solved,
        done: transition.done,
        metrics: convert::from_metrics(transition.metrics)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(messages: Vec<types::Message>) -> wit::Transition {
        wit::Transition { messages, reward: None, solved: None, done: false, metrics: Vec::new() }
    }

    fn message(role: types::Role) -> types::Message {
        types::Message { role, content: "go on".into() }
    }

    #[test]
    fn an_environment_does_not_speak_for_the_model() {
        use types::Role::{Assistant, System, Tool, User};
        let answer = from_transition(saying([System, User, Tool].map(message).into()));
        assert_eq!(answer.map(|transition| transition.messages.len()), Ok(3));
        let forged = from_transition(saying([User, Assistant].map(message).into()));
        assert!(matches!(forged, Err(Cause::BadReturn(what)) if what.contains("assistant")));
    }

    #[test]
    fn an_environment_says_a_thousand_messages_at_most() {
        let many = |count| from_transition(saying(vec![message(types::Role::User); count]));
        assert!(many(1000).is_ok());
        assert!(matches!(many(1001), Err(Cause::BadReturn(what)) if what.contains("1001 messages")));
    }
}
