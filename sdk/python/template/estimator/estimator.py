"""Leave-one-out (RLOO): a rollout is compared with the others of its prompt."""

from wit_world import exports
from wit_world.exports.estimator import Batch, Credit_PerRollout, Estimates, Traits


class Estimator(exports.Estimator):
    def describe(self) -> Traits:
        return Traits(needs_group=True, needs_values=False, uses_kl=False, whiten=False, parameters=[])

    def estimate(self, batch: Batch) -> Estimates:
        return Estimates(
            advantages=Credit_PerRollout(leave_one_out(batch.rewards, batch.groups)),
            returns=Credit_PerRollout(batch.rewards),
        )


def leave_one_out(rewards: list[float], groups: list[int]) -> list[float]:
    """Each reward minus the mean of the others in its group; 0 for a rollout that is alone."""
    # sum() rounds differently from an addition after the other, which the other languages do.
    totals, counts = {}, {}
    for reward, group in zip(rewards, groups):
        totals[group] = totals.get(group, 0.0) + reward
        counts[group] = counts.get(group, 0) + 1
    return [
        reward - (totals[group] - reward) / (counts[group] - 1) if counts[group] > 1 else 0.0
        for reward, group in zip(rewards, groups)
    ]
