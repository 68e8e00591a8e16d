//! Mathematics with a sandboxed Python at hand.
//!
//! The model is told of one tool, `python`. Each turn either calls it, and gets what the code printed, its value or its
//! error in a `tool` message, or is the final answer, which ends the episode: worth 1 if it equals the label, as the
//! `math` reward sees it, and 0 otherwise. After ten turns the episode is over. Names that the code defines last
//! until then; the run has to grant an interpreter (`[plugins.grant.python-math] code = "python"`).

mod call;
mod tell;

use call::{Call, Turn};
use molt_plugin::code::{Output, Session, Stopped};
use molt_plugin::environment::{Action, Episode, Transition};
use molt_plugin::types::{Failure, Message, Metric, Role, Task};

/// Turns of the model in one episode.
const TURNS: u32 = 10;

/// Calls of one turn that are run.
const CALLS: usize = 4;

pub struct PythonMath {
    task: Task,
    /// Begins with the first code to run.
    session: Option<Session>,
    counts: Counts,
}

/// What the metrics say at the end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    turns: u32,
    /// Code that was run.
    calls: u32,
    /// Code that ended in an error, or was stopped.
    errors: u32,
    /// Calls that could not be read.
    malformed: u32,
}

impl Episode for PythonMath {
    fn new(task: Task) -> Self {
        Self { task, session: None, counts: Counts::default() }
    }

    fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        if self.task.label.is_none() {
            return Err(format!("row {} has no label to grade an answer with", self.task.id).into());
        }
        Ok(tell::prompt(std::mem::take(&mut self.task.messages)))
    }

    fn step(&mut self, action: Action) -> Result<Transition, Failure> {
        let session = &mut self.session;
        let run = |code: &str| session.get_or_insert_with(Session::new).run(code);
        let label = self.task.label.as_deref().unwrap_or_default();
        Ok(self.counts.step(&action, label, run))
    }
}

molt_plugin::export_environment!(PythonMath);

impl Counts {
    fn step(
        &mut self,
        action: &Action,
        label: &str,
        mut run: impl FnMut(&str) -> Result<Output, Stopped>,
    ) -> Transition {
        self.turns += 1;
        let last = self.turns >= TURNS;
        match Turn::read(action) {
            Turn::Answer => {
                self.end(math_answer::is_right(&action.text, label, &math_answer::Choices::default()))
            }
            // What came back could not be answered any more.
            Turn::Calls(_) if last => self.end(false),
            Turn::Calls(calls) => {
                let mut messages: Vec<Message> =
                    calls.iter().take(CALLS).map(|call| Message::tool(self.answer(call, &mut run))).collect();
                if calls.len() > CALLS {
                    let more = format!("The other calls were not run: at most {CALLS} are, in one turn.");
                    messages.push(Message::tool(more));
                }
                if self.turns + 1 == TURNS {
                    messages.push(Message::new(Role::User, tell::LAST_TURN));
                }
                Transition::next(messages)
            }
        }
    }

    fn answer(&mut self, call: &Call, run: &mut impl FnMut(&str) -> Result<Output, Stopped>) -> String {
        match call {
            Call::Python(code) => {
                self.calls += 1;
                let result = run(code);
                if !matches!(&result, Ok(output) if output.error.is_none()) {
                    self.errors += 1;
                }
                match result {
                    Ok(output) => tell::output(&output),
                    Err(stopped) => tell::stopped(&stopped),
                }
            }
            Call::Malformed(why) => {
                self.malformed += 1;
                format!("{why}\n{}", tell::FORMAT)
            }
        }
    }

    fn end(&self, solved: bool) -> Transition {
        let metrics = [
            ("turns", self.turns),
            ("tool_calls", self.calls),
            ("tool_errors", self.errors),
            ("malformed_calls", self.malformed),
        ];
        let metrics = metrics.map(|(name, count)| Metric::new(name, f64::from(count))).to_vec();
        Transition { metrics, ..Transition::scored(if solved { 1.0 } else { 0.0 }, solved) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::ToolCall;

    fn python(code: &str) -> Action {
        let arguments_json = serde_json::json!({ "code": code }).to_string();
        let call = ToolCall { name: "python".into(), arguments_json };
        Action { text: "<tool_call>…</tool_call>".into(), tool_calls: vec![call], truncated: false }
    }

    fn say(text: &str) -> Action {
        Action { text: text.into(), tool_calls: vec![], truncated: false }
    }

    fn valued(value: &str) -> Result<Output, Stopped> {
        Ok(Output { printed: String::new(), value: Some(value.into()), error: None })
    }

    fn never(code: &str) -> Result<Output, Stopped> {
        panic!("{code:?} is not to be run")
    }

    #[test]
    fn code_is_run_and_the_final_answer_graded() {
        let mut counts = Counts::default();
        let first = counts.step(&python("6 * 7"), "42", |code| {
            assert_eq!(code, "6 * 7");
            valued("42")
        });
        assert_eq!(first, Transition::next(vec![Message::tool("42")]));
        let end = counts.step(&say("So it is \\boxed{42}."), "42", never);
        assert_eq!((end.reward, end.solved, end.done), (Some(1.0), Some(true), true));
        let named =
            |name: &str| end.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
        assert_eq!(
            (named("turns"), named("tool_calls"), named("tool_errors")),
            (Some(2.0), Some(1.0), Some(0.0))
        );
        let end = Counts::default().step(&say("It is 41"), "42", never);
        assert_eq!((end.reward, end.solved, end.done), (Some(0.0), Some(false), true));
    }

    #[test]
    fn the_tenth_turn_is_the_last_and_the_ninth_is_told_so() {
        let mut counts = Counts::default();
        for turn in 1..=8 {
            assert_eq!(counts.step(&python("0"), "1", |_| valued("0")).messages.len(), 1, "turn {turn}");
        }
        let ninth = counts.step(&python("0"), "1", |_| valued("0"));
        assert_eq!(ninth.messages.last(), Some(&Message::user(tell::LAST_TURN)));
        let tenth = counts.step(&python("1"), "1", never);
        assert_eq!((tenth.reward, tenth.done), (Some(0.0), true));
    }

    #[test]
    fn what_went_wrong_is_counted_and_told() {
        let mut counts = Counts::default();
        let failed = Output { printed: "a\n".into(), value: None, error: Some("NameError: b".into()) };
        let transition = counts.step(&python("b"), "1", |_| Ok(failed.clone()));
        assert_eq!(transition.messages, [Message::tool("a\nNameError: b")]);
        counts.step(&python("while True: pass"), "1", |_| Err(Stopped::Time(500)));
        counts.step(&say("<tool_call>{}</tool_call>"), "1", never);
        assert_eq!(counts, Counts { turns: 3, calls: 2, errors: 2, malformed: 1 });
    }

    #[test]
    fn a_turn_runs_four_calls_at_most() {
        let mut many = python("1");
        many.tool_calls = vec![many.tool_calls[0].clone(); 6];
        let mut counts = Counts::default();
        let transition = counts.step(&many, "1", |_| valued("1"));
        assert_eq!((transition.messages.len(), counts.calls), (5, 4));
    }
}
