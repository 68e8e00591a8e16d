// Leave-one-out (RLOO): a rollout is compared with the others of its prompt.

/** @type {Molt.Estimator} */
export const estimator = {
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
/** @param {number[]} rewards @param {number[]} groups */
function leaveOneOut(rewards, groups) {
  /** @type {number[]} */
  const totals = [];
  /** @type {number[]} */
  const counts = [];
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
