//! Environments: the host samples the model, the environment answers.

use crate::bindings::environment::exports::molt::plugin::environment as wit;
use crate::types::{Failure, Message, Task};
use std::cell::RefCell;

pub use wit::{Action, Transition};

/// One episode: what happens between a task and its end. Every episode has an instance of the plugin to itself.
pub trait Episode: 'static {
    fn new(task: Task) -> Self;

    /// The messages of the first prompt. Called once, before any `step`.
    fn reset(&mut self) -> Result<Vec<Message>, Failure>;

    /// Answers one turn of the model. Not called again after a transition that is done.
    fn step(&mut self, action: Action) -> Result<Transition, Failure>;
}

impl Transition {
    /// The episode goes on with these messages.
    pub fn next(messages: Vec<Message>) -> Self {
        Self { messages, reward: None, solved: None, done: false, metrics: Vec::new() }
    }

    /// The episode is over, and this environment does not score it.
    pub fn end() -> Self {
        Self { messages: Vec::new(), reward: None, solved: None, done: true, metrics: Vec::new() }
    }

    /// The episode is over and scored.
    pub fn scored(reward: f64, solved: bool) -> Self {
        Self { reward: Some(reward), solved: Some(solved), ..Self::end() }
    }
}

/// An [`Episode`] as the component exports it. The contract hands out shared references, since a resource may
/// be lent; the host never calls an episode twice at a time.
#[doc(hidden)]
pub struct Exported<E>(RefCell<E>);

impl<E: Episode> wit::Guest for Exported<E> {
    type Episode = Self;
}

impl<E: Episode> wit::GuestEpisode for Exported<E> {
    fn new(task: Task) -> Self {
        Self(RefCell::new(E::new(task)))
    }

    fn reset(&self) -> Result<Vec<Message>, Failure> {
        self.0.borrow_mut().reset()
    }

    fn step(&self, action: Action) -> Result<Transition, Failure> {
        self.0.borrow_mut().step(action)
    }
}
