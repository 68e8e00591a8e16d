"""Guess a whole number from 1 to 100 in seven guesses."""

import re

from wit_world.exports import environment
from wit_world.exports.environment import Action, Transition
from wit_world.imports.types import Message, Metric, Role, Task

GUESSES = 7


class Episode(environment.Episode):
    def __init__(self, task: Task) -> None:
        self.task = task
        self.secret = 1 + task.seed % 100
        self.guesses = 0

    def reset(self) -> list[Message]:
        question = Message(Role.USER, "I think of a whole number from 1 to 100. What is it?")
        return [*self.task.messages, question]

    def step(self, action: Action) -> Transition:
        self.guesses += 1
        guess = first_number(action.text)
        if guess == self.secret:
            return self.end(reward=1.0, solved=True)
        if self.guesses == GUESSES:
            return self.end(reward=0.0, solved=False)
        if guess is None:
            return self.answer("Say a whole number.")
        return self.answer("Higher." if self.secret > guess else "Lower.", reward=-0.05)

    def answer(self, text: str, reward: float | None = None) -> Transition:
        return Transition([Message(Role.USER, text)], reward, None, False, self.metrics())

    def end(self, reward: float, solved: bool) -> Transition:
        return Transition([], reward, solved, True, self.metrics())

    def metrics(self) -> list[Metric]:
        return [Metric("guesses", float(self.guesses))]


def first_number(text: str) -> int | None:
    """The first run of ASCII digits; none of more than nine."""
    # `\d` would match the digits of every script.
    digits = re.search("[0-9]+", text)
    return int(digits.group()) if digits and len(digits.group()) <= 9 else None
