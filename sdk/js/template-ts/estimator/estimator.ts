// Leave-one-out (RLOO): a rollout is compared with the others of its prompt.

export const estimator: Molt.Estimator = {
  describe() {
    return { needsGroup: true, needsValues: false, usesKl: false, whiten: false, parameters: [] };
  },

  estimate(batch) {
    return {
      advantages: { tag: "per-rollout", val: leaveOneOut(batch.rewards, batch.groups) },
      returns: { tag: "per-rollout", val: batch.rewards },
    };
  },
};

// Each reward minus the mean of the others in its group; 0 for a rollout that is alone.
function leaveOneOut(rewards: number[], groups: number[]): number[] {
  const totals: number[] = [];
  const counts: number[] = [];
  rewards.forEach((reward, i) => {
    const group = groups[i];
    totals[group] = (totals[group] ?? 0) + reward;
    counts[group] = (counts[group] ?? 0) + 1;
  });
  return rewards.map((reward, i) => {
    const group = groups[i];
    return counts[group] > 1 ? reward - (totals[group] - reward) / (counts[group] - 1) : 0;
  });
}
