//! An attack, and what has to come of it.

use molt_core::chat::{Message, Role, Task};
use molt_core::ids::{GroupId, RolloutId};
use molt_core::settings::{Access, Limits};
use molt_sandbox::{
    Action, Call, CodeOutput, EstimatorBatch, Failure, Interpreter, Library, LoadError, Sample, Sandbox,
    ToolCall,
};
use molt_tests::{plugins, target_dir};
use std::path::Path;
use std::sync::LazyLock;

pub(crate) static SANDBOX: LazyLock<Sandbox> =
    LazyLock::new(|| Sandbox::new(Some(&target_dir().join("hostile-cache"))).expect("the runtime starts"));

/// A plugin, what it is asked to do, and what has to come of it.
pub(crate) struct Attack {
    /// Names the attack, and the file of a component that is made for it.
    pub(crate) name: &'static str,
    plugin: Plugin,
    asked: Asked,
    access: Access,
    expected: Expected,
}

enum Plugin {
    /// A component that ships, or one of `host/sandbox/fixtures`.
    Built(&'static str),
    /// A component made by hand.
    Made(Vec<u8>),
}

enum Asked {
    /// To score this completion.
    Score(String),
    /// To score the group of these completions.
    ScoreGroup(Vec<&'static str>),
    /// To play an episode of one step. The task's label or the model's turn says where and how to attack.
    Play(&'static str, Action),
    /// To say its traits and to estimate two rollouts. Its parameter says how to attack.
    Estimate(f64),
    /// To run these, each in a session of its own while the earlier ones stay open. The last one counts.
    Run(&'static [&'static str]),
}

/// What has to come of an attack.
pub(crate) enum Expected {
    /// A failure with this label whose sentence has these words.
    Failure(&'static str, &'static str),
    /// An answer of which this is a part, as Rust prints it: the attack got nothing.
    Answer(&'static str),
    /// The component is not loaded, for a reason with these words, which its name does not have.
    Refused(&'static str),
}

pub(crate) use Expected::{Answer, Failure as Fails, Refused};

/// Limits that an attack meets soon.
pub(crate) fn limits() -> Limits {
    Limits { memory_mib: 32, cpu_ms: 300, call_s: 20, output_kib: 1024, log_kib: 16, ..Limits::default() }
}

impl Attack {
    fn new(name: &'static str, plugin: Plugin, asked: Asked, expected: Expected) -> Self {
        Self { name, plugin, asked, access: limits().into(), expected }
    }

    /// The reward of the fixtures does `act`.
    pub(crate) fn reward(name: &'static str, act: impl Into<String>, expected: Expected) -> Self {
        Self::new(name, Plugin::Built("hostile"), Asked::Score(act.into()), expected)
    }

    /// The environment of the fixtures does `act`.
    pub(crate) fn environment(name: &'static str, act: &'static str, expected: Expected) -> Self {
        Self::new(name, Plugin::Built("hostile-environment"), Asked::Play(act, turn("on", vec![])), expected)
    }

    /// The estimator of the fixtures does what `act` stands for.
    pub(crate) fn estimator(name: &'static str, act: f64, expected: Expected) -> Self {
        Self::new(name, Plugin::Built("hostile-estimator"), Asked::Estimate(act), expected)
    }

    /// The reward `fixture` does `commands`.
    pub(crate) fn granted(
        name: &'static str,
        fixture: &'static str,
        commands: impl Into<String>,
        expected: Expected,
    ) -> Self {
        Self::new(name, Plugin::Built(fixture), Asked::Score(commands.into()), expected)
    }

    /// Python runs `codes`, each in a session of its own. The last one counts.
    pub(crate) fn python(name: &'static str, codes: &'static [&'static str], expected: Expected) -> Self {
        Self::new(name, Plugin::Built("python"), Asked::Run(codes), expected)
    }

    /// The model of `python-math` has its tool run `code`.
    pub(crate) fn tool(name: &'static str, code: &str, expected: Expected) -> Self {
        let arguments_json = format!("{{\"code\": {code:?}}}");
        let turn = turn("", vec![ToolCall { name: "python".into(), arguments_json }]);
        Self::new(name, Plugin::Built("python-math"), Asked::Play("42", turn), expected)
    }

    /// A component made by hand is asked to score a rollout.
    pub(crate) fn made(name: &'static str, component: Vec<u8>, expected: Expected) -> Self {
        Self::new(name, Plugin::Made(component), Asked::Score("42".into()), expected)
    }

    /// A component made by hand is asked to play an episode.
    pub(crate) fn made_environment(name: &'static str, component: Vec<u8>, expected: Expected) -> Self {
        Self::new(name, Plugin::Made(component), Asked::Play("42", turn("on", vec![])), expected)
    }

    /// A component made by hand is asked to estimate.
    pub(crate) fn made_estimator(name: &'static str, component: Vec<u8>, expected: Expected) -> Self {
        Self::new(name, Plugin::Made(component), Asked::Estimate(0.0), expected)
    }

    /// A component made by hand is asked to score a group of two.
    pub(crate) fn made_group(name: &'static str, component: Vec<u8>, expected: Expected) -> Self {
        Self::new(name, Plugin::Made(component), Asked::ScoreGroup(vec!["42", "43"]), expected)
    }

    /// With other limits or grants.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Access)) -> Self {
        change(&mut self.access);
        self
    }

    /// The label with which it is counted, if it fails.
    pub(crate) fn label(&self) -> Option<&'static str> {
        match self.expected {
            Expected::Failure(label, _) => Some(label),
            _ => None,
        }
    }

    /// The name by which messages call the plugin.
    fn plugin_name(&self) -> &'static str {
        match self.plugin {
            Plugin::Built(name) => name,
            Plugin::Made(_) => self.name,
        }
    }

    /// Attacks in the name of rollout 3.`member` and gives back the label of the failure.
    ///
    /// # Errors
    /// Something else came of it than is expected.
    pub(crate) async fn run(&self, dir: &Path, member: u32) -> Result<Option<&'static str>, String> {
        let name = match &self.plugin {
            Plugin::Built(name) => (*name).to_owned(),
            Plugin::Made(bytes) => {
                let path = dir.join(self.name).with_extension("wasm");
                std::fs::write(&path, bytes).expect("the component is written");
                path.to_str().expect("temporary paths are UTF-8").to_owned()
            }
        };
        let answer = self.carry_out(&name, member).await;
        let plugin = format!("`{}` ", self.plugin_name());
        let (fits, label, said) = match (&self.expected, answer) {
            (Expected::Refused(told), Err(refused)) => {
                let sentence = refused.to_string();
                let reason = sentence.replace(self.plugin_name(), "");
                (reason.contains(told) && reason != sentence, None, sentence)
            }
            (Expected::Failure(label, told), Ok(Err(failure))) => {
                let sentence = failure.to_string();
                let rollout = format!(" in rollout 3.{member}");
                let named = sentence.starts_with(&format!("plugin {plugin}"))
                    && (sentence.contains(&rollout) || matches!(self.asked, Asked::Estimate(_)));
                let fits = failure.label() == *label && sentence.contains(told) && named;
                (fits, Some(failure.label()), sentence)
            }
            (Expected::Answer(part), Ok(Ok(answer))) => return part_of(part, self.name, &answer),
            (_, Ok(Err(failure))) => (false, Some(failure.label()), failure.to_string()),
            (_, other) => (false, None, format!("{other:?}")),
        };
        let plain = !said.chars().any(char::is_control) && said.len() < 8192;
        if fits && plain { Ok(label) } else { Err(format!("{}: {label:?} {said:.1000?}", self.name)) }
    }

    /// What the plugin answered, as Rust prints it.
    async fn carry_out(&self, name: &str, member: u32) -> Result<Result<String, Failure>, LoadError> {
        let (library, access) = (library(), self.access.clone());
        Ok(match &self.asked {
            Asked::Score(completion) => {
                let plugin = SANDBOX.reward(&library, name, access)?;
                plugin.score(call(member), &sample(completion)).await.map(|answer| format!("{answer:?}"))
            }
            Asked::ScoreGroup(completions) => {
                let plugin = SANDBOX.reward(&library, name, access)?;
                let samples: Vec<Sample> = completions.iter().map(|completion| sample(completion)).collect();
                plugin.score_group(call(member), &samples).await.map(|answer| format!("{answer:?}"))
            }
            Asked::Play(label, turn) => {
                let plugin = SANDBOX.environment(&library, name, access)?;
                play(&plugin, label, turn, member).await
            }
            Asked::Run(codes) => {
                let plugin = SANDBOX.interpreter(&library, name, access)?;
                run_code(&plugin, codes, member).await.map(|answer| format!("{answer:?}"))
            }
            Asked::Estimate(act) => {
                let plugin = SANDBOX.estimator(&library, name, access)?;
                match plugin.traits().await {
                    Ok(_) => plugin.estimate(&batch(*act)).await.map(|answer| format!("{answer:?}")),
                    Err(failure) => Err(failure),
                }
            }
        })
    }
}

/// An episode of one step.
async fn play(
    plugin: &molt_sandbox::Environment,
    label: &str,
    turn: &Action,
    member: u32,
) -> Result<String, Failure> {
    let mut episode = plugin.open(call(member), &task(label)).await?;
    let messages = episode.reset().await?;
    episode.step(turn).await.map(|transition| format!("{messages:?} {transition:?}"))
}

/// Sessions side by side, each with one run.
async fn run_code(plugin: &Interpreter, codes: &[&str], member: u32) -> Result<CodeOutput, Failure> {
    let (mut open, mut output) = (Vec::new(), CodeOutput::default());
    for code in codes {
        let mut session = plugin.open(call(member)).await?;
        output = session.run(code).await?;
        open.push(session);
    }
    Ok(output)
}

/// A turn of the model.
fn turn(text: &str, tool_calls: Vec<ToolCall>) -> Action {
    Action { text: text.into(), tool_calls, truncated: false }
}

fn part_of(part: &str, name: &str, answer: &str) -> Result<Option<&'static str>, String> {
    if answer.contains(part) { Ok(None) } else { Err(format!("{name}: {answer}")) }
}

/// The shipped plugins and the hostile ones.
pub(crate) fn library() -> Library {
    Library::new(&plugins())
}

/// For rollout 3.`member`.
pub(crate) fn call(member: u32) -> Call {
    Call { rollout: Some(RolloutId { group: GroupId(3), member }), seed: u64::from(member) }
}

/// A task with a label.
pub(crate) fn task(label: &str) -> Task {
    Task {
        id: "row-1".into(),
        messages: vec![Message::new(Role::User, "6 * 7?")],
        label: Some(label.into()),
        fields: vec![],
    }
}

/// A rollout of one turn.
pub(crate) fn sample(completion: &str) -> Sample {
    let task = task("42");
    let messages = [task.messages.clone(), vec![Message::new(Role::Assistant, completion)]].concat();
    Sample { task, seed: 0, messages, completion: completion.into(), truncated: false }
}

/// Two rollouts of one group, with two tokens and one.
fn batch(act: f64) -> EstimatorBatch {
    EstimatorBatch {
        rewards: vec![1.0, 0.5],
        groups: vec![0, 0],
        segment_rollouts: vec![0, 1],
        segment_offsets: vec![0, 2, 3],
        turns: vec![0; 3],
        turn_rewards: vec![1.0, 0.5],
        turn_offsets: vec![0, 1, 2],
        parameters: vec![act],
        ..EstimatorBatch::default()
    }
}
