//! Several questions one after another, each rewarded in the turn that answers it.
//!
//! The prompt is the first question. The column `more` holds the others, one per line, and the label the expected
//! answers, one per line. A turn that is the expected answer, apart from white space around it, earns 1/n of n
//! questions; any other turn earns 0. The episode is solved when every answer was right. What a turn earned does
//! not depend on the turns before it, so an estimator that credits turn by turn has less noise to learn from.

use molt_plugin::environment::{Action, Episode, Transition};
use molt_plugin::types::{Failure, Message, Metric, Task};
use std::collections::VecDeque;

pub struct Quiz {
    task: Task,
    /// Questions that were not asked yet.
    questions: VecDeque<String>,
    /// The answers of questions that were not answered yet.
    answers: VecDeque<String>,
    /// Number of all questions.
    count: usize,
    right: usize,
}

impl Episode for Quiz {
    fn new(task: Task) -> Self {
        let lines = |text: Option<&str>| text.unwrap_or_default().lines().map(str::to_owned).collect();
        let (questions, answers): (VecDeque<_>, VecDeque<_>) =
            (lines(task.field("more")), lines(task.label.as_deref()));
        Self { task, questions, count: answers.len(), answers, right: 0 }
    }

    fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        let questions = self.questions.len() + 1;
        if questions != self.count {
            let (id, answers) = (&self.task.id, self.count);
            return Err(format!(
                "row {id} has {questions} questions, the prompt and the lines of column more, but {answers} answers"
            )
            .into());
        }
        Ok(std::mem::take(&mut self.task.messages))
    }

    fn step(&mut self, action: Action) -> Result<Transition, Failure> {
        let expected = self.answers.pop_front().ok_or("all questions were answered before")?;
        let right = action.text.trim() == expected.trim();
        self.right += usize::from(right);
        let transition = match self.questions.pop_front() {
            Some(question) => Transition::next(vec![Message::user(question)]),
            None => Transition {
                solved: Some(self.right == self.count),
                metrics: vec![Metric::new("right_answers", self.right as f64)],
                ..Transition::end()
            },
        };
        let reward = if right { 1.0 / self.count as f64 } else { 0.0 };
        Ok(Transition { reward: Some(reward), ..transition })
    }
}

molt_plugin::export_environment!(Quiz);

#[cfg(test)]
mod tests {
    use super::*;
    use molt_plugin::types::Field;

    fn quiz(label: Option<&str>, more: &str) -> Quiz {
        let more = Field { name: "more".into(), value: more.into() };
        let (messages, label) = (vec![Message::user("1+1?")], label.map(str::to_owned));
        Quiz::new(Task { id: "7".into(), messages, label, fields: vec![more], seed: 0 })
    }

    fn say(text: &str) -> Action {
        Action { text: text.into(), tool_calls: vec![], truncated: false }
    }

    #[test]
    fn every_turn_earns_its_own_share() {
        let mut quiz = quiz(Some("2\n4"), "2+2?");
        assert_eq!(quiz.reset(), Ok(vec![Message::user("1+1?")]));
        let next = Transition { reward: Some(0.0), ..Transition::next(vec![Message::user("2+2?")]) };
        assert_eq!(quiz.step(say("3")), Ok(next));
        let end = quiz.step(say(" 4\n")).expect("an answer is never a failure");
        assert_eq!((end.reward, end.solved, end.done), (Some(0.5), Some(false), true));
        assert_eq!(end.metrics, [Metric::new("right_answers", 1.0)]);
    }

    #[test]
    fn all_right_is_solved() {
        let mut quiz = quiz(Some("2"), "");
        quiz.reset().expect("one question and one answer");
        let end = quiz.step(say("2")).expect("an answer is never a failure");
        assert_eq!((end.reward, end.solved, end.done), (Some(1.0), Some(true), true));
    }

    #[test]
    fn a_row_without_an_answer_for_each_question_is_a_failure() {
        for (label, more) in [(None, ""), (Some("2"), "2+2?"), (Some("2\n4"), "")] {
            let why = quiz(label, more).reset().expect_err("does not fit").message;
            assert!(why.contains("row 7"), "{why}");
        }
    }
}
