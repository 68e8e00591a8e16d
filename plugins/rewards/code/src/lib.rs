//! 1 if the model's Python passes all tests of the row, else 0. It is run by the interpreter that the run grants:
//! `[plugins.grant.code] code = "python"`.
//!
//! The code is the last fenced block of the model's last turn, or all of the turn. The row's columns say what it is
//! tested with:
//! * `test`: Python with assertions, or a list of them. A `check(candidate)` in it is called with the function that
//!   `entry_point` names, which may be an expression such as `Solution().solve`; other names that the test does not
//!   define are the model's functions. `setup` is code that the model's code and the test both may use. If the prompt
//!   ends in the function to complete, the model may write the whole of it or go on.
//! * `stdin`: a list of `{"input": …, "output": …}`, texts for a program's standard input and output. Spaces at the
//!   ends of lines and empty lines at the end do not count.
//!
//! The verdict cannot be forged, since nothing that makes it is where the model's code runs. For function tests that
//! code has a session of its own, which is told the arguments of calls and answers with values as data. The assertions run
//! in another session, in which the model's functions are stand-ins that know these answers; only there are the test and
//! what it expects. A program's output is compared here.
//!
//! What a test gets from a function is what plain data can say: numbers, texts, lists, tuples, sets, dicts, iterators, and
//! the kind of an error. It does not see what a function does to its arguments, and objects of other classes are equal to
//! nothing.
//!
//! Limits are the interpreter's (`[plugins.only.python]`). `cpu_ms` bounds one program, or all calls of a test that do not
//! depend on each other's answers. Code that is stopped has failed. A row without tests, or with a test that is broken, is
//! `infra`.

mod extract;
mod session;

use molt_plugin::code::{Session, Stopped};
use molt_plugin::reward::{Grade, Reward, Sample, Verdict};
use molt_plugin::types::{Metric, Role, Task};
use serde::Deserialize;
use session::{literal, run, taken};

const WIRE: &str = include_str!("wire.py");
const SOLVER: &str = include_str!("solver.py");
const JUDGE: &str = include_str!("judge.py");
const PROGRAM: &str = include_str!("program.py");

/// Times that a test may ask for answers which depend on earlier ones.
const ROUNDS: usize = 100;

/// Characters of answers, all together.
const LONGEST_ANSWERS: usize = 4 << 20;

pub struct Code;

impl Reward for Code {
    fn score(sample: Sample) -> Verdict {
        match graded(&sample) {
            Ok(Outcome { passed, stopped }) => Verdict::Scored(Grade {
                reward: if passed { 1.0 } else { 0.0 },
                solved: Some(passed),
                metrics: vec![Metric::new("stopped", if stopped { 1.0 } else { 0.0 })],
            }),
            Err(why) => Verdict::Infra(format!("row {}: {why}", sample.task.id)),
        }
    }
}

molt_plugin::export_reward!(Code);

/// What the tests say.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    passed: bool,
    /// The code ran into a limit, or ended its interpreter.
    stopped: bool,
}

const PASSED: Outcome = Outcome { passed: true, stopped: false };
const FAILED: Outcome = Outcome { passed: false, stopped: false };
const STOPPED: Outcome = Outcome { passed: false, stopped: true };

/// One test of a program.
#[derive(Deserialize)]
struct Dialogue {
    input: String,
    output: String,
}

fn graded(sample: &Sample) -> Result<Outcome, String> {
    let task = &sample.task;
    let stdin = task.field("stdin").map(serde_json::from_str::<Vec<Dialogue>>).transpose();
    let stdin =
        stdin.map_err(|error| format!("its column \"stdin\" is no list of inputs and outputs: {error}"))?;
    let test = task.field("test");
    if test.is_none() && stdin.as_ref().is_none_or(Vec::is_empty) {
        return Err("it has no tests: give it a column \"test\" or \"stdin\"".into());
    }
    if let Some(test) = test {
        let outcome = function(task, test, &sample.completion)?;
        if !outcome.passed {
            return Ok(outcome);
        }
    }
    for dialogue in stdin.iter().flatten() {
        let outcome = program(&extract::code(&sample.completion), dialogue)?;
        if !outcome.passed {
            return Ok(outcome);
        }
    }
    Ok(PASSED)
}

/// Runs a test of functions: the judge says which calls it needs answers to, until it has a verdict.
fn function(task: &Task, test: &str, completion: &str) -> Result<Outcome, String> {
    let entry = task.field("entry_point").unwrap_or("");
    let prompt = task.messages.iter().rfind(|message| message.role == Role::User);
    let prompt =
        prompt.map(|prompt| extract::code(&prompt.content)).filter(|code| extract::defines(code, entry));
    let (setup, prompt) = (task.field("setup").unwrap_or(""), prompt.as_deref().unwrap_or(""));
    let programs = extract::programs(setup, prompt, completion, entry);
    // Asked so far, and what came back. All are asked again, in a new session, for a function may remember earlier calls.
    let (mut calls, mut answers) = (String::new(), String::from("[]"));
    for round in 0..ROUNDS {
        let asked = match judge(&[setup, prompt], test, entry, &answers) {
            Ok(asked) => asked,
            // Before it has an answer, nothing of the model's can have stopped it.
            Err(stopped) if round == 0 => return Err(format!("its test was stopped: {}", why(&stopped))),
            Err(_) => return Ok(STOPPED),
        };
        match asked {
            Asked::Calls(more) => calls.push_str(more.trim_matches(['[', ']'])),
            Asked::Verdict(verdict) => {
                return match verdict.strip_prefix("broken: ") {
                    Some(why) => Err(format!("its test cannot be run: {why}")),
                    None => Ok(if verdict == "pass" { PASSED } else { FAILED }),
                };
            }
        }
        match solve(&programs, &format!("[{calls}]")) {
            Ok(Some(solved)) => answers = solved,
            Ok(None) => return Ok(FAILED),
            Err(_) => return Ok(STOPPED),
        }
    }
    Err(format!("its test asks for answers more than {ROUNDS} times"))
}

/// What the judge wants.
enum Asked {
    Calls(String),
    Verdict(String),
}

fn judge(setups: &[&str], test: &str, entry: &str, answers: &str) -> Result<Asked, Stopped> {
    let session = Session::new();
    run(&session, WIRE)?;
    run(&session, JUDGE)?;
    let setups: String = setups.iter().map(|setup| format!("{},", literal(setup))).collect();
    let call = format!(
        "_said = _Judge().verdict(({setups}), {}, {}, {})\n_said",
        literal(test),
        literal(entry),
        literal(answers)
    );
    let output = session.run(&call)?;
    let said = output.value.unwrap_or_else(|| format!("'fail: {}'", output.error.unwrap_or_default()));
    let said = said.trim_matches(['\'', '"']).to_owned();
    if said == "calls" {
        return Ok(match taken(&session, LONGEST_ANSWERS)? {
            Some(calls) => Asked::Calls(calls),
            None => Asked::Verdict("broken: the arguments of its calls are too long".into()),
        });
    }
    Ok(Asked::Verdict(said))
}

/// The answers of the model's code to calls; None if it has none.
fn solve(programs: &[String], calls: &str) -> Result<Option<String>, Stopped> {
    let session = Session::new();
    run(&session, WIRE)?;
    run(&session, SOLVER)?;
    for program in programs {
        session.run(program)?;
    }
    run(&session, &format!("_answers({})", literal(calls)))?;
    taken(&session, LONGEST_ANSWERS)
}

fn program(source: &str, dialogue: &Dialogue) -> Result<Outcome, String> {
    let session = Session::new();
    let prepared = run(&session, WIRE).and_then(|_| run(&session, PROGRAM));
    prepared.map_err(|stopped| format!("the interpreter cannot be prepared: {}", why(&stopped)))?;
    let printed = run(&session, &format!("_program({}, {})", literal(source), literal(&dialogue.input)));
    // More than twice what is expected is something else.
    let longest = 2 * dialogue.output.len() + (1 << 16);
    match printed.and_then(|error| if error { Ok(None) } else { taken(&session, longest) }) {
        Ok(Some(printed)) if lines(&printed) == lines(&dialogue.output) => Ok(PASSED),
        Ok(_) => Ok(FAILED),
        Err(_) => Ok(STOPPED),
    }
}

/// Lines without spaces at their ends, and without empty ones at the end.
fn lines(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

fn why(stopped: &Stopped) -> String {
    match stopped {
        Stopped::Time(ms) => format!("more than {ms} ms"),
        Stopped::Memory(mib) => format!("more than {mib} MiB"),
        Stopped::Output(kib) => format!("more than {kib} KiB of output"),
        Stopped::Crashed(why) => why.clone(),
    }
}
