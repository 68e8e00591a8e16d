//! Version 0.1 of the contract, whose records that did not change are those of the latest version, and how the
//! others are converted: what a plugin gets from the latest, and what it says to the latest.

use crate::bindings::{estimator as latest_estimator, types as latest};

pub(crate) mod environment {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "environment-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::environment::*;
}

pub(crate) mod reward {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "reward-plugin",
        with: { "molt:plugin/types": crate::bindings::types::molt::plugin::types },
        exports: { default: async },
    });
    pub(crate) use exports::molt::plugin::reward::*;
}

pub(crate) mod estimator {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "estimator-plugin",
        exports: { default: async },
        // A batch may have millions of numbers: they are copied once, into the plugin's memory.
        ownership: Borrowing { duplicate_if_necessary: false },
    });
    pub(crate) use exports::molt::plugin::estimator::*;
}

impl From<crate::bindings::environment::Action> for environment::Action {
    fn from(action: crate::bindings::environment::Action) -> Self {
        let crate::bindings::environment::Action { text, tool_calls, truncated } = action;
        Self { text, tool_calls, truncated }
    }
}

impl From<environment::Transition> for crate::bindings::environment::Transition {
    fn from(transition: environment::Transition) -> Self {
        let environment::Transition { messages, reward, solved, done, metrics } = transition;
        Self { messages, reward, solved, done, metrics }
    }
}

impl From<latest::Sample> for reward::Sample {
    fn from(sample: latest::Sample) -> Self {
        let latest::Sample { task, messages, completion, truncated } = sample;
        Self { task, messages, completion, truncated }
    }
}

impl From<reward::Verdict> for latest::Verdict {
    fn from(verdict: reward::Verdict) -> Self {
        match verdict {
            reward::Verdict::Scored(reward::Grade { reward, solved, metrics }) => {
                Self::Scored(latest::Grade { reward, solved, metrics })
            }
            reward::Verdict::Invalid(reason) => Self::Invalid(reason),
            reward::Verdict::Infra(reason) => Self::Infra(reason),
        }
    }
}

/// Turns have no rewards of their own in 0.1, and the parameters of every estimator are these two.
impl<'a> From<latest_estimator::Batch<'a>> for estimator::Batch<'a> {
    fn from(batch: latest_estimator::Batch<'a>) -> Self {
        let parameter = |at: usize| batch.parameters.get(at).map_or(1.0, |&value| value as f32);
        Self {
            rewards: batch.rewards,
            groups: batch.groups,
            segment_rollouts: batch.segment_rollouts,
            segment_offsets: batch.segment_offsets,
            turns: batch.turns,
            kl: batch.kl,
            values: batch.values,
            gamma: parameter(0),
            lambda: parameter(1),
            kl_coef: batch.kl_coef,
        }
    }
}

impl From<estimator::Credit> for latest_estimator::Credit {
    fn from(credit: estimator::Credit) -> Self {
        match credit {
            estimator::Credit::PerRollout(numbers) => Self::PerRollout(numbers),
            estimator::Credit::PerToken(numbers) => Self::PerToken(numbers),
        }
    }
}

impl From<estimator::Estimates> for latest_estimator::Estimates {
    fn from(estimates: estimator::Estimates) -> Self {
        Self { advantages: estimates.advantages.into(), returns: estimates.returns.into() }
    }
}

impl From<estimator::Traits> for latest_estimator::Traits {
    fn from(traits: estimator::Traits) -> Self {
        let estimator::Traits { needs_group, needs_values, whiten } = traits;
        let rate = |name: &str, doc: &str| latest::Parameter {
            name: name.to_owned(),
            doc: doc.to_owned(),
            kind: latest::ParameterKind::Float(latest::FloatRange { default: 1.0, min: 0.0, max: 1.0 }),
        };
        let parameters = vec![
            rate("gamma", "discount, if it discounts"),
            rate("lambda", "trace decay of GAE, if it uses it"),
        ];
        // It was given the KL, and does not say whether it reads it.
        Self { needs_group, needs_values, uses_kl: true, whiten, parameters }
    }
}
