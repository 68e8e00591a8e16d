//! Environments: episodes that replay, do not meet, and stand whatever the model says.

use super::{Findings, answer, brief, inputs};
use crate::cases::{self, EnvironmentCase, Row};
use crate::error::AuthorError;
use crate::failure;
use futures_util::future::join_all;
use molt_sandbox::{Action, Call, Cause, Environment, Failure, ToolCall};
use std::path::Path;

/// An episode: a row, and what the model says.
struct Input {
    name: String,
    /// It is one of the author's cases.
    is_case: bool,
    row: Row,
    actions: Vec<Action>,
}

/// Turns that an episode may take; a run has `agent.max_turns` to end it.
const TURNS: usize = 64;

/// What an episode answered, turn after turn.
type Course = Vec<Result<String, Failure>>;

pub(super) async fn check(
    environment: &Environment,
    cases: Option<&Path>,
    findings: &mut Findings,
) -> Result<(), AuthorError> {
    let mut inputs = from_cases(cases)?;
    let row = inputs.first().map_or_else(plain_row, |input| input.row.clone());
    if let Err(problem) = begins(environment, &row).await {
        findings.failed(
            "reset",
            failure::told(&problem, environment.info()),
            &failure::help(
                &problem,
                "give --cases a file whose first case has a row that an episode can begin with",
            ),
        );
        return Ok(());
    }
    inputs.extend(hard(&row));
    let mut alone = Vec::new();
    for input in &inputs {
        alone.push(play(environment, input).await);
    }
    let failed = inputs.iter().zip(&alone).filter_map(|(input, course)| {
        // A case of the author's may want a failure, and a row may be at fault; a crash never is in order.
        let problem = course.iter().find_map(|turn| turn.as_ref().err())?;
        let wanted = input.is_case && matches!(problem.cause, Cause::Reported(_));
        (!wanted).then_some((&*input.name, problem))
    });
    let failed: Vec<_> = failed.collect();
    let good = format!("{} episodes, with empty, huge, malformed and cut-off turns", inputs.len());
    let help =
        "answer every turn of a model with a message; a failure drops the rollout and is never trained on";
    if !findings.calls("actions", good, (&failed, inputs.len()), (environment.info(), help)) {
        return Ok(());
    }

    let mut problems = Vec::new();
    for (input, before) in inputs.iter().zip(&alone) {
        problems.extend(difference(input, before, &play(environment, input).await));
    }
    findings.all(
        "determinism",
        "the same row, seed and turns give the same bits",
        problems,
        "let nothing but the row, `task.seed` and the turns decide: no time, no order of a hash table",
    );

    let together = join_all(inputs.iter().rev().map(|input| play(environment, input))).await;
    let pairs = inputs.iter().zip(&alone).zip(together.iter().rev());
    let problems = pairs.filter_map(|((input, before), after)| difference(input, before, after));
    findings.all(
        "independence",
        "episodes that are open at the same time do not change each other",
        problems.collect(),
        "keep the state in the episode",
    );

    ends(environment, &row, findings).await;
    Ok(())
}

fn plain_row() -> Row {
    Row::new(Some("What is 6 times 7?".into()), Some("42".into()), 7)
}

async fn begins(environment: &Environment, row: &Row) -> Result<(), Failure> {
    let mut episode = environment.open(Call { rollout: None, seed: row.seed }, &row.task()).await?;
    episode.reset().await.map(drop)
}

/// Plays an episode to its end, or to the end of the actions.
async fn play(environment: &Environment, input: &Input) -> Course {
    let call = Call { rollout: None, seed: input.row.seed };
    let mut course = Vec::new();
    let mut episode = match environment.open(call, &input.row.task()).await {
        Ok(episode) => episode,
        Err(problem) => return vec![Err(problem)],
    };
    course.push(episode.reset().await.map(|start| format!("{start:?}")));
    for action in &input.actions {
        if course.last().is_some_and(Result::is_err) {
            break;
        }
        match episode.step(action).await {
            Ok(transition) => {
                course.push(Ok(format!("{transition:?}")));
                if transition.done {
                    break;
                }
            }
            Err(problem) => course.push(Err(problem)),
        }
    }
    course
}

fn difference(input: &Input, one: &Course, other: &Course) -> Option<String> {
    let length = one.len().max(other.len());
    let nothing = || "the end".to_owned();
    (0..length).find_map(|turn| {
        let told = |course: &Course| course.get(turn).map_or_else(nothing, answer);
        let (one, other) = (told(one), told(other));
        (one != other)
            .then(|| format!("{}, turn {turn}: {}, and then {}", input.name, brief(&one), brief(&other)))
    })
}

/// Says whether an episode ends by itself; not to is no fault.
async fn ends(environment: &Environment, row: &Row, findings: &mut Findings) {
    let says = ["I do not know.", "1", "", "x = 1"];
    let mut longest = 0;
    for text in says {
        let input =
            Input { name: String::new(), is_case: false, row: row.clone(), actions: vec![say(text); TURNS] };
        longest = longest.max(play(environment, &input).await.len().saturating_sub(1));
    }
    let detail = if longest < TURNS {
        format!("after {longest} turns at most, with a model that repeats itself")
    } else {
        format!("not within {TURNS} turns of a model that repeats itself: agent.max_turns of a run ends it")
    };
    findings.ok("end", detail);
}

fn from_cases(file: Option<&Path>) -> Result<Vec<Input>, AuthorError> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let cases = cases::read::<EnvironmentCase>(file)?;
    let input = |case: EnvironmentCase| Input {
        name: format!("case {:?}", case.name),
        is_case: true,
        actions: case.turns.iter().map(cases::Turn::action).collect(),
        row: case.row,
    };
    Ok(cases.into_iter().map(input).collect())
}

fn say(text: &str) -> Action {
    Action { text: text.into(), tool_calls: Vec::new(), truncated: false }
}

/// Every hard text as a turn, cut off, and as a tool call, whole and damaged.
fn hard(row: &Row) -> Vec<Input> {
    let mut all = Vec::new();
    let mut add = |name: String, actions: Vec<Action>| {
        all.push(Input { name, is_case: false, row: row.clone(), actions })
    };
    for (name, text) in inputs::texts() {
        let called = |name: &str, arguments: &str| Action {
            tool_calls: vec![ToolCall { name: name.into(), arguments_json: arguments.into() }],
            ..say("")
        };
        add(format!("text: {name}"), vec![say(&text), say("42"), say(&text)]);
        add(format!("text that was cut off: {name}"), vec![Action { truncated: true, ..say(&text) }]);
        add(format!("arguments of a tool call: {name}"), vec![called("python", &text), say("42")]);
        add(format!("name of a tool call: {name}"), vec![called(&text, "{}"), say("42")]);
    }
    let call = ToolCall { name: "python".into(), arguments_json: r#"{"code": 1, "code": null}"#.into() };
    let many = Action { tool_calls: vec![call; 1000], ..say("") };
    add("a thousand tool calls in one turn".into(), vec![many, say("42")]);
    all
}
