//! Guess a number from 1 to 100, in seven guesses.

use molt_plugin::environment::{Action, Episode, Transition};
use molt_plugin::types::{Failure, Message, Metric, Task};

const GUESSES: u32 = 7;

pub struct Guess {
    task: Task,
    secret: u32,
    guesses: u32,
}

impl Episode for Guess {
    fn new(task: Task) -> Self {
        let secret = 1 + (task.seed % 100) as u32;
        Self { task, secret, guesses: 0 }
    }

    fn reset(&mut self) -> Result<Vec<Message>, Failure> {
        let mut messages = std::mem::take(&mut self.task.messages);
        messages.push(Message::user("I think of a whole number from 1 to 100. What is it?"));
        Ok(messages)
    }

    fn step(&mut self, action: Action) -> Result<Transition, Failure> {
        self.guesses += 1;
        let guess = first_number(&action.text);
        let metrics = vec![Metric::new("guesses", f64::from(self.guesses))];
        let transition = if guess == Some(self.secret) {
            Transition::scored(1.0, true)
        } else if self.guesses == GUESSES {
            Transition::scored(0.0, false)
        } else {
            match guess {
                None => Transition::next(vec![Message::user("Say a whole number.")]),
                Some(guess) => {
                    let hint = if self.secret > guess { "Higher." } else { "Lower." };
                    Transition { reward: Some(-0.05), ..Transition::next(vec![Message::user(hint)]) }
                }
            }
        };
        Ok(Transition { metrics, ..transition })
    }
}

/// The first run of digits; None without one, or with more than nine digits.
fn first_number(text: &str) -> Option<u32> {
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let digits = text[from..].split(|c: char| !c.is_ascii_digit()).next()?;
    if digits.len() <= 9 { digits.parse().ok() } else { None }
}

molt_plugin::export_environment!(Guess);

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret is 42.
    fn game() -> Guess {
        let mut game = Guess::new(Task { id: "1".into(), messages: vec![], label: None, fields: vec![], seed: 41 });
        assert_eq!(game.reset().map(|messages| messages.len()), Ok(1));
        game
    }

    fn say(game: &mut Guess, text: &str) -> Transition {
        let action = Action { text: text.into(), tool_calls: vec![], truncated: false };
        game.step(action).expect("a guess never fails")
    }

    #[test]
    fn hints_lead_to_the_number() {
        let mut game = game();
        assert_eq!(say(&mut game, "Is it 50?").messages, [Message::user("Lower.")]);
        assert_eq!(say(&mut game, "20 or 30").messages, [Message::user("Higher.")]);
        let end = say(&mut game, "42");
        assert_eq!((end.reward, end.solved, end.done), (Some(1.0), Some(true), true));
        assert_eq!(end.metrics, [Metric::new("guesses", 3.0)]);
    }

    #[test]
    fn the_seventh_wrong_guess_is_the_last() {
        let mut game = game();
        for _ in 0..6 {
            assert_eq!(say(&mut game, "1234567890").messages, [Message::user("Say a whole number.")]);
        }
        let end = say(&mut game, "41");
        assert_eq!((end.reward, end.solved, end.done), (Some(0.0), Some(false), true));
    }
}
