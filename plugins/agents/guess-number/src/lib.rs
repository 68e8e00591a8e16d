//! Find a hidden number by asking.
//!
//! The number is the task's label, or drawn from the task's seed. Each turn of the model is a guess; a wrong
//! one is answered with "higher" or "lower", in a `tool` message if the guess was a tool call and in a `user`
//! message otherwise. Finding it at guess k of n is worth 1 − (k − 1)/n, so asking well pays; not finding it is
//! worth 0. Columns of the dataset: `low` and `high` (1 and 100), `guesses` (10).

use molt_plugin::environment::{Action, Episode, Transition};
use molt_plugin::types::{Failure, Message, Metric, Role, Task};
use std::cmp::Ordering;
use std::ops::RangeInclusive;

pub struct GuessNumber {
    task: Task,
    range: RangeInclusive<i64>,
    hidden: i64,
    guesses: u32,
    used: u32,
}

impl Episode for GuessNumber {
    fn new(task: Task) -> Self {
        Self { task, range: 1..=100, hidden: 0, guesses: 10, used: 0 }
    }

    fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        let (low, high) = (column(&self.task, "low", 1)?, column(&self.task, "high", 100)?);
        if low > high {
            return Err(format!("column low is {low}, which is more than high, {high}").into());
        }
        self.range = low..=high;
        self.guesses = column(&self.task, "guesses", 10)?;
        if self.guesses == 0 {
            return Err("column guesses is 0, but at least 1 is needed".into());
        }
        self.hidden = match self.task.label.as_deref().map(str::trim) {
            Some(label) => {
                label.parse().map_err(|_| format!("the label is {label:?}, not a whole number"))?
            }
            None => draw(self.task.seed, low, high),
        };
        if !self.range.contains(&self.hidden) {
            return Err(format!("the hidden number {} is not from {low} to {high}", self.hidden).into());
        }
        Ok(std::mem::take(&mut self.task.messages))
    }

    fn step(&mut self, action: Action) -> Result<Transition, Failure> {
        self.used += 1;
        let (text, answer_as) = match action.tool_calls.first() {
            Some(call) => (&call.arguments_json, Role::Tool),
            None => (&action.text, Role::User),
        };
        let guess = last_integer(text).filter(|guess| self.range.contains(guess));
        let hint = match guess.map(|guess| self.hidden.cmp(&guess)) {
            Some(Ordering::Equal) => {
                let reward = 1.0 - f64::from(self.used - 1) / f64::from(self.guesses);
                return Ok(self.over(Transition::scored(reward, true)));
            }
            Some(Ordering::Greater) => "higher".to_owned(),
            Some(Ordering::Less) => "lower".to_owned(),
            None => format!("guess a whole number from {} to {}", self.range.start(), self.range.end()),
        };
        if self.used >= self.guesses {
            return Ok(self.over(Transition::scored(0.0, false)));
        }
        Ok(Transition::next(vec![Message::new(answer_as, hint)]))
    }
}

impl GuessNumber {
    fn over(&self, end: Transition) -> Transition {
        Transition { metrics: vec![Metric::new("guesses", f64::from(self.used))], ..end }
    }
}

molt_plugin::export_environment!(GuessNumber);

/// The column `name` as a number.
fn column<T: std::str::FromStr>(task: &Task, name: &str, default: T) -> Result<T, Failure> {
    task.field(name).map_or(Ok(default), |text| {
        text.trim()
            .parse()
            .map_err(|_| format!("column {name} is {text:?}, not a number in its range").into())
    })
}

/// A number from `low` to `high` for the seed, which the host has already mixed well.
fn draw(seed: u64, low: i64, high: i64) -> i64 {
    let count = i128::from(high) - i128::from(low) + 1;
    (i128::from(low) + i128::from(seed) % count) as i64
}

/// The last run of digits with its sign; None if it does not fit.
fn last_integer(text: &str) -> Option<i64> {
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let before = text[..end].trim_end_matches(|c: char| c.is_ascii_digit());
    let start = before.strip_suffix('-').unwrap_or(before).len();
    text[start..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::{Field, ToolCall};

    fn task(label: Option<&str>, fields: &[(&str, &str)]) -> Task {
        Task {
            id: "1".into(),
            messages: vec![Message::user("guess")],
            label: label.map(str::to_owned),
            fields: fields.iter().map(|(n, v)| Field { name: (*n).into(), value: (*v).into() }).collect(),
            seed: 1234,
        }
    }

    fn say(text: &str) -> Action {
        Action { text: text.into(), tool_calls: vec![], truncated: false }
    }

    fn start(task: Task) -> GuessNumber {
        let mut game = GuessNumber::new(task);
        assert_eq!(game.reset(), Ok(vec![Message::user("guess")]));
        game
    }

    #[test]
    fn hints_lead_to_the_number_and_each_guess_costs_a_tenth() {
        let mut game = start(task(Some("37"), &[]));
        assert_eq!(game.step(say("50")), Ok(Transition::next(vec![Message::user("lower")])));
        assert_eq!(game.step(say("I say 25.")), Ok(Transition::next(vec![Message::user("higher")])));
        let end = game.step(say("37")).expect("a guess is never a failure");
        assert_eq!((end.reward, end.solved, end.done), (Some(0.8), Some(true), true));
        assert_eq!(end.metrics, [Metric::new("guesses", 3.0)]);
    }

    #[test]
    fn a_tool_call_is_answered_by_the_tool() {
        let mut game = start(task(Some("37"), &[]));
        let call = ToolCall { name: "guess".into(), arguments_json: r#"{"number": 36}"#.into() };
        let action = Action { text: "<call 99>".into(), tool_calls: vec![call], truncated: false };
        assert_eq!(game.step(action), Ok(Transition::next(vec![Message::tool("higher")])));
    }

    #[test]
    fn nonsense_uses_up_a_guess_and_the_last_one_ends_the_episode() {
        let mut game = start(task(Some("3"), &[("guesses", "3"), ("high", "9")]));
        let hint = Ok(Transition::next(vec![Message::user("guess a whole number from 1 to 9")]));
        assert_eq!(game.step(say("hm")), hint);
        assert_eq!(game.step(say("99999999999999999999999")), hint);
        let end = game.step(say("4")).expect("a guess is never a failure");
        assert_eq!((end.reward, end.solved, end.done), (Some(0.0), Some(false), true));
    }

    #[test]
    fn without_a_label_the_seed_decides() {
        assert_eq!(start(task(None, &[])).hidden, 1 + 1234 % 100);
        assert_eq!(draw(u64::MAX, i64::MIN, i64::MAX), i64::MAX);
    }

    #[test]
    fn a_bad_row_is_a_failure_that_says_why() {
        for (label, fields) in [
            (Some("x"), vec![]),
            (Some("101"), vec![]),
            (None, vec![("low", "5"), ("high", "4")]),
            (None, vec![("guesses", "-1")]),
            (None, vec![("guesses", "0")]),
        ] {
            assert!(GuessNumber::new(task(label, &fields)).reset().is_err(), "{label:?} {fields:?}");
        }
    }

    #[test]
    fn the_last_integer_of_a_text() {
        assert_eq!(last_integer("from 3 to -12, é"), Some(-12));
        assert_eq!(last_integer("é7"), Some(7));
        assert_eq!(last_integer("none"), None);
    }
}
