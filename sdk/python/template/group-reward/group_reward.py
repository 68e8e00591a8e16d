"""A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words."""

from collections import Counter

from wit_world import exports
from wit_world.imports.types import Grade, Metric, Sample, Verdict, Verdict_Infra, Verdict_Scored


class GroupReward(exports.GroupReward):
    def score_group(self, samples: list[Sample]) -> list[Verdict]:
        same = Counter(sample.completion for sample in samples)
        return [score(sample, same[sample.completion]) for sample in samples]


def score(sample: Sample, same: int) -> Verdict:
    """The verdict on a rollout whose words are those of `same` rollouts, itself among them."""
    label = sample.task.label
    if label is None:
        return Verdict_Infra("the row has no label")  # the grader's fault: dropped and counted
    solved = label in sample.completion
    return Verdict_Scored(Grade(1 / same if solved else 0.0, solved, [Metric("same", float(same))]))
