//! `molt plugin run`: try a plugin by hand.

use crate::batch::{BatchInput, StepInput, tokens_by_rollout};
use crate::cases::{self, Row};
use crate::error::{AuthorError, FAILED, OrAuthor};
use crate::failure;
use crate::open::{self, Loaded, Target};
use crate::present::{print, role, table};
use crate::test::describe;
use clap::{ArgMatches, FromArgMatches};
use molt_core::chat::{Message, Task};
use molt_sandbox::{Action, Call, Environment, Estimator, Failure, Interpreter, Loss, Reward, ToolCall};
use serde::Deserialize;
use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Try a plugin by hand: score a completion, play an episode, estimate a batch, compute losses, or run code
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The row's prompt
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The row's label
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Another column of the row
    #[arg(long = "field", value_name = "NAME=TEXT")]
    fields: Vec<String>,
    /// All randomness that the plugin sees
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// What a reward scores, once per completion [default: standard input]
    #[arg(long = "completion", value_name = "TEXT")]
    completions: Vec<String>,
    /// The model's turns, one a line; a line may be JSON such as
    /// {"text": "", "tool_calls": [{"name": "python", "arguments": {"code": "1"}}]} [default: standard input]
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// A batch as JSON, such as {"rewards": [1, 0, 0.5], "groups": [0, 0, 0]}, or for a loss
    /// {"logprobs": [-1, -2], "sampled": [-1, -2.5], "advantages": [1, -1]} [default: standard input]
    #[arg(long, value_name = "FILE")]
    batch: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<u8, AuthorError> {
    let mut opened = args.target.open()?;
    // What the plugin prints is seen as soon as a call ends; the verdict is on standard output.
    opened.sandbox = opened.sandbox.observe(|cost| {
        for line in failure::printed(&cost.printed) {
            eprintln!("[printed] {line}");
        }
    });
    let task = args.task()?;
    let call = Call { rollout: None, seed: args.seed };
    let loaded = opened.load()?;
    let outcome = opened.runtime.block_on(async {
        match &loaded {
            Loaded::Reward(plugin) => reward(plugin, args, &task, call).await,
            Loaded::Environment(plugin) => environment(plugin, args, &task, call).await,
            Loaded::Estimator(plugin) => estimator(plugin, args).await,
            Loaded::Loss(plugin) => loss(plugin, args).await,
            Loaded::Interpreter(plugin) => interpreter(plugin, args, call).await,
        }
    })?;
    match outcome {
        Ok(()) => Ok(0),
        Err(problem) => {
            eprintln!("{}", failure::after_printed(problem, &opened.info));
            Ok(FAILED)
        }
    }
}

/// An episode to try, as the arguments of `run` say it.
pub struct Tried {
    /// The plugin's file, or a name.
    pub plugin: String,
    /// Directories to look for plugins in.
    pub path: Vec<PathBuf>,
    /// A run's settings.
    pub config: Option<PathBuf>,
    pub task: Task,
    pub seed: u64,
}

/// Reads the arguments of `run`, for a host that has a model to play with.
///
/// # Errors
/// A field without a value, or a project that is not built.
pub fn tried(matches: &ArgMatches) -> Result<Tried, AuthorError> {
    let args = Args::from_arg_matches(matches)
        .map_err(|error| AuthorError::user(error.to_string(), "see `molt plugin run --help`"))?;
    let task = args.task()?;
    let Target { plugin, config, search } = args.target;
    Ok(Tried { plugin: open::target(&plugin)?, path: search.path, config, task, seed: args.seed })
}

impl Args {
    fn task(&self) -> Result<Task, AuthorError> {
        let mut task = Row::new(self.prompt.clone(), self.label.clone(), self.seed).task();
        for field in &self.fields {
            let Some((name, text)) = field.split_once('=') else {
                let error = format!("the field {field:?} has no value");
                return Err(AuthorError::user(error, "give --field NAME=TEXT"));
            };
            task.fields.push((name.to_owned(), text.to_owned()));
        }
        Ok(task)
    }
}

/// What a command came to: a failure of the plugin is told with its trace.
type Outcome = Result<Result<(), Failure>, AuthorError>;

async fn reward(plugin: &Reward, args: &Args, task: &Task, call: Call) -> Outcome {
    let mut completions = args.completions.clone();
    if completions.is_empty() {
        completions.push(all_of_stdin("The completion, and then Ctrl-D:")?);
    }
    let samples: Vec<_> = completions.iter().map(|text| cases::sample(task, call.seed, text)).collect();
    if plugin.scores_groups() {
        match plugin.score_group(call, &samples).await {
            Ok(verdicts) => {
                print(&verdicts.iter().map(|verdict| describe(verdict) + "\n").collect::<String>())?
            }
            Err(problem) => return Ok(Err(problem)),
        }
        return Ok(Ok(()));
    }
    for sample in &samples {
        match plugin.score(call, sample).await {
            Ok(verdict) => print(&(describe(&verdict) + "\n"))?,
            Err(problem) => return Ok(Err(problem)),
        }
    }
    Ok(Ok(()))
}

async fn environment(plugin: &Environment, args: &Args, task: &Task, call: Call) -> Outcome {
    let mut turns = Turns::open(args.script.as_deref())?;
    let mut episode = match plugin.open(call, task).await {
        Ok(episode) => episode,
        Err(problem) => return Ok(Err(problem)),
    };
    match episode.reset().await {
        Ok(messages) => show(&messages)?,
        Err(problem) => return Ok(Err(problem)),
    }
    let mut total = 0.0;
    while let Some(line) = turns.next("> ")? {
        let transition = match episode.step(&action(&line)).await {
            Ok(transition) => transition,
            Err(problem) => return Ok(Err(problem)),
        };
        total += transition.reward.unwrap_or(0.0);
        let reward = transition.reward.map(|reward| format!("reward {reward}"));
        let solved =
            transition.solved.map(|solved| (if solved { "solved" } else { "not solved" }).to_owned());
        let metrics = transition.metrics.iter().map(|(name, value)| format!("{name} {value}"));
        let told: Vec<String> = reward.into_iter().chain(solved).chain(metrics).collect();
        if !told.is_empty() {
            print(&format!("[{}]\n", told.join(", ")))?;
        }
        if transition.done {
            print(&format!("The episode is over, with reward {total}.\n"))?;
            return Ok(Ok(()));
        }
        show(&transition.messages)?;
    }
    print(&format!("The episode goes on; so far its reward is {total}.\n"))?;
    Ok(Ok(()))
}

async fn estimator(plugin: &Estimator, args: &Args) -> Outcome {
    let help = "write it like this: {\"rewards\": [1, 0, 0.5], \"groups\": [0, 0, 0], \"tokens\": [3, 2, 4]}";
    let input: BatchInput = serde_json::from_str(&batch(args, help)?).or_user("this is not a batch", help)?;
    let traits = match plugin.traits().await {
        Ok(traits) => traits,
        Err(problem) => return Ok(Err(problem)),
    };
    let batch = input.into_batch(&traits.parameters).map_err(|problem| AuthorError::user(problem, help))?;
    let estimate = match plugin.estimate(&batch).await {
        Ok(estimate) => estimate,
        Err(problem) => return Ok(Err(problem)),
    };
    let mut rows =
        vec![["ROLLOUT", "GROUP", "REWARD", "TOKENS", "ADVANTAGE", "RETURN"].map(String::from).to_vec()];
    for (rollout, tokens) in tokens_by_rollout(&batch).iter().enumerate() {
        let of = |numbers: &[f32]| {
            let numbers: Vec<f32> = tokens.iter().filter_map(|&token| numbers.get(token).copied()).collect();
            match numbers.as_slice() {
                [] => "-".to_owned(),
                [first, rest @ ..] if rest.iter().all(|number| number == first) => first.to_string(),
                all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            }
        };
        rows.push(vec![
            rollout.to_string(),
            batch.groups.get(rollout).map_or_else(String::new, ToString::to_string),
            batch.rewards.get(rollout).map_or_else(String::new, ToString::to_string),
            tokens.len().to_string(),
            of(&estimate.advantages),
            of(&estimate.returns),
        ]);
    }
    print(&table(&rows))?;
    Ok(Ok(()))
}

async fn loss(plugin: &Loss, args: &Args) -> Outcome {
    let help =
        "write it like this: {\"logprobs\": [-1, -2], \"sampled\": [-1, -2.5], \"advantages\": [1, -1]}";
    let input: StepInput = serde_json::from_str(&batch(args, help)?).or_user("this is not a batch", help)?;
    let batch = input.into_batch().map_err(|problem| AuthorError::user(problem, help))?;
    let found = match plugin.compute(&batch).await {
        Ok(found) => found,
        Err(problem) => return Ok(Err(problem)),
    };
    let heads = ["TOKEN", "SEGMENT", "LOGPROB", "SAMPLED", "OLD", "ADVANTAGE", "LOSS", "SLOPE"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for (segment, ends) in batch.segment_offsets.windows(2).enumerate() {
        let [from, to] = ends else { continue };
        for token in *from as usize..*to as usize {
            let of = |numbers: &[f32]| numbers.get(token).map_or_else(String::new, ToString::to_string);
            let columns = [&batch.logprobs, &batch.sampled, &batch.old, &batch.advantages];
            let columns = columns.into_iter().chain([&found.losses, &found.slopes]);
            let places = [token.to_string(), segment.to_string()];
            rows.push(places.into_iter().chain(columns.map(|numbers| of(numbers))).collect());
        }
    }
    print(&table(&rows))?;
    Ok(Ok(()))
}

async fn interpreter(plugin: &Interpreter, args: &Args, call: Call) -> Outcome {
    let mut session = match plugin.open(call).await {
        Ok(session) => session,
        Err(problem) => return Ok(Err(problem)),
    };
    let help = "give --script a file with code";
    let read = |file: &PathBuf| {
        std::fs::read_to_string(file).or_user(format!("cannot read {}", file.display()), help)
    };
    let mut script = args.script.as_ref().map(read).transpose()?;
    let mut typed = Turns::open(None)?;
    loop {
        // A script is run as a whole, and what is typed line by line.
        let code = if args.script.is_some() { script.take() } else { typed.next(">>> ")? };
        let Some(code) = code else { return Ok(Ok(())) };
        let output = match session.run(&code).await {
            Ok(output) => output,
            Err(problem) => return Ok(Err(problem)),
        };
        let line = |text: &String| {
            if text.is_empty() || text.ends_with('\n') { text.clone() } else { format!("{text}\n") }
        };
        print(&line(&output.printed))?;
        for text in output.value.iter().chain(&output.error) {
            print(&line(text))?;
        }
    }
}

fn show(messages: &[Message]) -> Result<(), AuthorError> {
    print(&messages.iter().map(|m| format!("{}: {}\n", role(m.role), m.content)).collect::<String>())
}

/// The text of the batch that was given.
fn batch(args: &Args, help: &str) -> Result<String, AuthorError> {
    match &args.batch {
        Some(file) => std::fs::read_to_string(file)
            .or_user(format!("cannot read the batch in {}", file.display()), help),
        None => all_of_stdin("A batch as JSON, and then Ctrl-D:"),
    }
}

/// Everything on standard input; a person is told what is wanted.
fn all_of_stdin(wanted: &str) -> Result<String, AuthorError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        eprintln!("{wanted}");
    }
    let mut text = String::new();
    stdin.lock().read_to_string(&mut text).or_user("standard input cannot be read", "send text in UTF-8")?;
    Ok(text)
}

/// The model's turns: lines of a file, or of standard input.
struct Turns {
    script: Option<std::vec::IntoIter<String>>,
}

impl Turns {
    fn open(script: Option<&Path>) -> Result<Self, AuthorError> {
        let Some(file) = script else { return Ok(Self { script: None }) };
        let text = std::fs::read_to_string(file)
            .or_user(format!("cannot read the script in {}", file.display()), "give --script a text file")?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Ok(Self { script: Some(lines.into_iter()) })
    }

    /// The next line. One from a file is shown, as if it were typed.
    fn next(&mut self, prompt: &str) -> Result<Option<String>, AuthorError> {
        if let Some(lines) = &mut self.script {
            let line = lines.next();
            if let Some(line) = &line {
                print(&format!("{prompt}{line}\n"))?;
            }
            return Ok(line);
        }
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            print(prompt)?;
        }
        let mut line = String::new();
        let read = stdin.lock().read_line(&mut line);
        let read = read.or_user("standard input cannot be read", "send lines of UTF-8")?;
        Ok((read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// A turn as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default)]
    text: String,
    #[serde(default)]
    tool_calls: Vec<Called>,
    #[serde(default)]
    truncated: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    #[serde(default)]
    arguments: serde_json::Value,
}

/// A line as the model's turn: JSON if it is a turn, and else the text itself.
fn action(line: &str) -> Action {
    let said = line.trim_start().starts_with('{').then(|| serde_json::from_str::<Said>(line).ok());
    let Some(said) = said.flatten() else {
        return Action { text: line.to_owned(), tool_calls: Vec::new(), truncated: false };
    };
    let calls = said.tool_calls.into_iter();
    let tool_calls =
        calls.map(|call| ToolCall { name: call.name, arguments_json: call.arguments.to_string() }).collect();
    Action { text: said.text, tool_calls, truncated: said.truncated }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_turn_whatever_it_is() {
        assert_eq!(action("50").text, "50");
        assert_eq!(action("[]").text, "[]");
        assert_eq!(action(r#"{"guess": 1}"#).text, r#"{"guess": 1}"#);
        let called =
            action(r#"{"tool_calls": [{"name": "python", "arguments": {"code": "1"}}], "truncated": true}"#);
        assert_eq!((called.text.as_str(), called.truncated), ("", true));
        let call = ToolCall { name: "python".into(), arguments_json: r#"{"code":"1"}"#.into() };
        assert_eq!(called.tool_calls, [call]);
    }
}
