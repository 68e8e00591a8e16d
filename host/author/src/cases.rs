//! The cases of `molt plugin test`: inputs as people write them, and what must come back.

use crate::batch::{BatchInput, StepInput};
use crate::error::{AuthorError, OrAuthor};
use molt_core::chat::{Message, Role, Task};
use molt_sandbox::{Action, Sample, ToolCall};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A file of cases of one kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cases<C> {
    #[serde(rename = "case", default = "Vec::new")]
    pub(crate) cases: Vec<C>,
}

/// A message: its text, which the user said, or role and content.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Said {
    Text(String),
    Message(Message),
}

/// A prompt: a text, which the user said, or messages.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    Text(String),
    Messages(Vec<Said>),
}

/// The row of the dataset that a case is about.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Row {
    id: Option<String>,
    prompt: Option<Prompt>,
    label: Option<String>,
    #[serde(default)]
    fields: BTreeMap<String, toml::Value>,
    /// All randomness that the plugin sees.
    #[serde(default)]
    pub(crate) seed: u64,
}

/// For a reward that scores one rollout.
#[derive(Debug, Deserialize)]
pub(crate) struct RewardCase {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) completion: String,
    /// The whole conversation; prompt and completion if unset.
    messages: Option<Vec<Said>>,
    #[serde(default)]
    truncated: bool,
    /// Relative to numbers above 1, absolute below.
    #[serde(default = "exact")]
    pub(crate) tolerance: f64,
    pub(crate) expect: ExpectVerdict,
    #[serde(flatten)]
    _rest: NoMore,
}

/// For a reward that scores the rollouts of one prompt together.
#[derive(Debug, Deserialize)]
pub(crate) struct GroupCase {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) completions: Vec<String>,
    #[serde(default = "exact")]
    pub(crate) tolerance: f64,
    /// One per completion.
    pub(crate) expect: Vec<ExpectVerdict>,
    #[serde(flatten)]
    _rest: NoMore,
}

/// What must come back; what is unset is not compared.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectVerdict {
    pub(crate) reward: Option<f64>,
    pub(crate) solved: Option<bool>,
    #[serde(default)]
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Text that the reason contains.
    pub(crate) invalid: Option<String>,
    pub(crate) infra: Option<String>,
}

/// One episode.
#[derive(Debug, Deserialize)]
pub(crate) struct EnvironmentCase {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) row: Row,
    /// The messages that it begins with.
    pub(crate) start: Option<Vec<Said>>,
    /// Text in the failure that it begins with.
    pub(crate) failure: Option<String>,
    #[serde(rename = "turn", default)]
    pub(crate) turns: Vec<Turn>,
    #[serde(default = "exact")]
    pub(crate) tolerance: f64,
    #[serde(flatten)]
    _rest: NoMore,
}

/// One turn of the model, and what must come back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    #[serde(default)]
    say: String,
    #[serde(default)]
    tool_calls: Vec<Called>,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    pub(crate) expect: ExpectTransition,
}

/// A tool call; `arguments` is its JSON text.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectTransition {
    pub(crate) messages: Option<Vec<Said>>,
    pub(crate) reward: Option<f64>,
    pub(crate) solved: Option<bool>,
    pub(crate) done: Option<bool>,
    #[serde(default)]
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Text that the failure contains.
    pub(crate) failure: Option<String>,
}

/// One batch.
#[derive(Debug, Deserialize)]
pub(crate) struct EstimatorCase {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) batch: BatchInput,
    #[serde(default = "rounded")]
    pub(crate) tolerance: f64,
    pub(crate) expect: ExpectEstimate,
    #[serde(flatten)]
    _rest: NoMore,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectEstimate {
    /// One per rollout: every action token of the rollout has this advantage.
    pub(crate) advantages: Option<Vec<f64>>,
    pub(crate) returns: Option<Vec<f64>>,
    /// One per action token.
    pub(crate) token_advantages: Option<Vec<f64>>,
    pub(crate) token_returns: Option<Vec<f64>>,
    /// Text that the failure contains.
    pub(crate) failure: Option<String>,
}

/// One optimiser step.
#[derive(Debug, Deserialize)]
pub(crate) struct LossCase {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) step: StepInput,
    #[serde(default = "rounded")]
    pub(crate) tolerance: f64,
    pub(crate) expect: ExpectLosses,
    #[serde(flatten)]
    _rest: NoMore,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectLosses {
    /// One per action token.
    pub(crate) losses: Option<Vec<f64>>,
    pub(crate) slopes: Option<Vec<f64>>,
    /// Text that the failure contains.
    pub(crate) failure: Option<String>,
}

/// One session of an interpreter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterpreterCase {
    pub(crate) name: String,
    #[serde(rename = "run")]
    pub(crate) runs: Vec<RunCode>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) expect: ExpectOutput,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectOutput {
    pub(crate) printed: Option<String>,
    pub(crate) value: Option<String>,
    /// Text that the error contains.
    pub(crate) error: Option<String>,
}

/// Refuses keys that nothing else took: `deny_unknown_fields` does not go together with `flatten`.
#[derive(Debug)]
struct NoMore;

impl<'de> Deserialize<'de> for NoMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = NoMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("no more keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoMore, A::Error> {
                match map.next_key::<String>()? {
                    Some(key) => Err(A::Error::custom(format!("unknown field `{key}`"))),
                    None => Ok(NoMore),
                }
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

fn exact() -> f64 {
    1e-9
}

fn rounded() -> f64 {
    1e-6
}

/// Reads a file of cases; there is at least one.
pub(crate) fn read<C: DeserializeOwned>(path: &Path) -> Result<Vec<C>, AuthorError> {
    let refused = || format!("the cases in {} cannot be used", path.display());
    let help =
        "each is a [[case]] with a name, its input and what to `expect`; `molt plugin new` writes examples";
    let text = std::fs::read_to_string(path).or_user(refused(), help)?;
    let cases: Cases<C> = toml::from_str(&text).or_user(refused(), help)?;
    if cases.cases.is_empty() {
        return Err(AuthorError::user(format!("there are no cases in {}", path.display()), help));
    }
    Ok(cases.cases)
}

impl Said {
    pub(crate) fn message(&self) -> Message {
        match self {
            Said::Text(text) => Message::new(Role::User, text),
            Said::Message(message) => message.clone(),
        }
    }
}

impl Row {
    pub(crate) fn new(prompt: Option<String>, label: Option<String>, seed: u64) -> Self {
        Self { prompt: prompt.map(Prompt::Text), label, seed, ..Self::default() }
    }

    /// The row as a plugin gets it.
    pub(crate) fn task(&self) -> Task {
        let messages = match &self.prompt {
            None => Vec::new(),
            Some(Prompt::Text(text)) => vec![Message::new(Role::User, text)],
            Some(Prompt::Messages(messages)) => messages.iter().map(Said::message).collect(),
        };
        let text = |value: &toml::Value| match value {
            toml::Value::String(text) => text.clone(),
            other => serde_json::to_string(other).unwrap_or_default(),
        };
        Task {
            id: self.id.clone().unwrap_or_else(|| "1".into()),
            messages,
            label: self.label.clone(),
            fields: self.fields.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        }
    }

    /// A rollout of one turn.
    pub(crate) fn sample(&self, completion: &str) -> Sample {
        sample(&self.task(), self.seed, completion)
    }
}

/// A rollout of one turn about `task`.
pub(crate) fn sample(task: &Task, seed: u64, completion: &str) -> Sample {
    let turn = Message::new(Role::Assistant, completion);
    let messages = task.messages.iter().cloned().chain([turn]).collect();
    Sample { task: task.clone(), seed, messages, completion: completion.to_owned(), truncated: false }
}

impl RewardCase {
    pub(crate) fn sample(&self) -> Sample {
        let mut sample = self.row.sample(&self.completion);
        sample.truncated = self.truncated;
        if let Some(messages) = &self.messages {
            sample.messages = messages.iter().map(Said::message).collect();
        }
        sample
    }
}

impl GroupCase {
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.completions.iter().map(|completion| self.row.sample(completion)).collect()
    }
}

impl Turn {
    pub(crate) fn action(&self) -> Action {
        let call =
            |call: &Called| ToolCall { name: call.name.clone(), arguments_json: call.arguments.clone() };
        Action {
            text: self.say.clone(),
            tool_calls: self.tool_calls.iter().map(call).collect(),
            truncated: self.truncated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<C: DeserializeOwned>(text: &str) -> Result<Vec<C>, toml::de::Error> {
        toml::from_str::<Cases<C>>(text).map(|cases| cases.cases)
    }

    #[test]
    fn a_row_is_what_a_dataset_has() {
        let text = r#"
            [[case]]
            name = "a"
            prompt = [{ role = "system", content = "s" }, "u"]
            fields = { n = 3, s = "t", l = [1, "x"] }
            completion = "c"
            expect = { reward = 1 }
        "#;
        let case = &parse::<RewardCase>(text).expect("well-formed")[0];
        let sample = case.sample();
        let roles: Vec<Role> = sample.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant]);
        let fields = sample.task.fields.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>();
        assert_eq!(fields, ["l=[1,\"x\"]", "n=3", "s=t"]);
        assert_eq!((case.row.seed, case.expect.reward), (0, Some(1.0)));
    }

    #[test]
    fn an_episode_is_a_list_of_turns() {
        let text = r#"
            [[case]]
            name = "a"
            seed = 4
            [[case.turn]]
            say = "1"
            tool_calls = [{ name = "python", arguments = '{"code": "1"}' }]
            expect = { messages = [{ role = "tool", content = "1" }], done = false }
        "#;
        let case = &parse::<EnvironmentCase>(text).expect("well-formed")[0];
        let action = case.turns[0].action();
        assert_eq!(
            (action.text.as_str(), action.tool_calls[0].arguments_json.as_str()),
            ("1", r#"{"code": "1"}"#)
        );
        assert_eq!(case.turns[0].expect.done, Some(false));
    }

    #[test]
    fn a_step_is_written_in_whole_numbers_too() {
        let text = r#"
            [[case]]
            name = "a"
            logprobs = [-1, -0.5, -2]
            sampled = [-1, -1, -1]
            advantages = [1, 0, -0.5]
            tokens = [1, 2]
            expect = { losses = [1, 0, -1] }
        "#;
        let case = parse::<LossCase>(text).expect("well-formed").remove(0);
        assert_eq!(case.expect.losses, Some(vec![1.0, 0.0, -1.0]));
        let batch = case.step.into_batch().expect("fits");
        assert_eq!((batch.segment_offsets, batch.advantages), (vec![0, 1, 3], vec![1.0, 0.0, -0.5]));
    }

    #[test]
    fn a_misspelt_expectation_is_an_error() {
        let text = "[[case]]\nname = \"a\"\ncompletion = \"c\"\nexpect = { rewrad = 1 }\n";
        let error = parse::<RewardCase>(text).expect_err("misspelt").to_string();
        assert!(error.contains("rewrad"), "{error}");
        let text = "[[case]]\nname = \"a\"\ncompletion = \"c\"\nlable = \"c\"\nexpect = {}\n";
        let error = parse::<RewardCase>(text).expect_err("misspelt").to_string();
        assert!(error.contains("lable"), "{error}");
        let text = "[[case]]\nname = \"a\"\nrewards = [1]\ngroup = [0]\nexpect = {}\n";
        let error = parse::<EstimatorCase>(text).expect_err("misspelt").to_string();
        assert!(error.contains("group"), "{error}");
        let text = "[[case]]\nname = \"a\"\nlogprobs = [-1]\nsampled = [-1]\nadvantages = [1]\nodl = [-1]\nexpect = {}\n";
        let error = parse::<LossCase>(text).expect_err("misspelt").to_string();
        assert!(error.contains("odl"), "{error}");
    }
}
