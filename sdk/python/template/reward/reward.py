"""Closeness: the more of the label an answer begins with, the better."""

from wit_world import exports
from wit_world.imports.types import (
    Grade,
    Metric,
    Sample,
    Verdict,
    Verdict_Infra,
    Verdict_Invalid,
    Verdict_Scored,
)

# str.strip() alone would strip Unicode's white space too.
WHITE_SPACE = " \t\n\r\x0b\x0c"


class Reward(exports.Reward):
    def score(self, sample: Sample) -> Verdict:
        if sample.task.label is None:
            return Verdict_Infra("the row has no label")
        answer = sample.completion.strip(WHITE_SPACE)
        label = sample.task.label.strip(WHITE_SPACE)
        if not answer:
            return Verdict_Invalid("the answer is empty")
        solved = answer == label
        reward = 1.0 if solved else 0.5 * common_prefix(answer, label) / max(len(answer), len(label))
        return Verdict_Scored(Grade(reward, solved, [Metric("length", float(len(answer)))]))


def common_prefix(a: str, b: str) -> int:
    """How many characters `a` and `b` have in common before the first that differs."""
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
