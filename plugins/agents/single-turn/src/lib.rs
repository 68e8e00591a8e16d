//! One prompt, one turn: the model answers, and a reward plugin scores the answer.

use molt_plugin::environment::{Action, Episode, Transition};
use molt_plugin::types::{Failure, Message, Task};

/// Gives the task's own messages and ends with the first turn.
pub struct SingleTurn {
    task: Task,
}

impl Episode for SingleTurn {
    fn new(task: Task) -> Self {
        Self { task }
    }

    fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        Ok(std::mem::take(&mut self.task.messages))
    }

    fn step(&mut self, _: Action) -> Result<Transition, Failure> {
        Ok(Transition::end())
    }
}

molt_plugin::export_environment!(SingleTurn);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_prompt_and_ends_unscored() {
        let prompt = vec![Message::user("2+2?")];
        let task = Task { id: "1".into(), messages: prompt.clone(), label: None, fields: vec![], seed: 0 };
        let mut episode = SingleTurn::new(task);
        assert_eq!(episode.reset(), Ok(prompt));
        let action = Action { text: "4".into(), tool_calls: vec![], truncated: false };
        assert_eq!(episode.step(action), Ok(Transition::end()));
    }
}
