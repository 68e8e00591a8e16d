//! Interpreters: run code that a model wrote, for environments that were granted one.

use crate::bindings::interpreter::exports::molt::plugin::code as wit;
use std::cell::RefCell;

pub use wit::Output;

/// State that lasts from one piece of code to the next. Every session has an instance of the plugin to itself.
pub trait Interpreter: 'static {
    fn new() -> Self;

    /// Runs `code` to its end. An error of the code is part of the output; the host stops what runs too long.
    fn run(&mut self, code: String) -> Output;
}

/// An [`Interpreter`] as the component exports it. The host never calls a session twice at a time.
#[doc(hidden)]
pub struct Exported<I>(RefCell<I>);

impl<I: Interpreter> wit::Guest for Exported<I> {
    type Session = Self;
}

impl<I: Interpreter> wit::GuestSession for Exported<I> {
    fn new() -> Self {
        Self(RefCell::new(I::new()))
    }

    fn run(&self, code: String) -> Result<Output, wit::Stopped> {
        Ok(self.0.borrow_mut().run(code))
    }
}
