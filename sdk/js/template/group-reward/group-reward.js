// A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words.

/** @type {Molt.GroupReward} */
export const groupReward = {
  scoreGroup(samples) {
    const same = /** @type {Map<string, number>} */ (new Map());
    for (const { completion } of samples) same.set(completion, (same.get(completion) ?? 0) + 1);
    return samples.map((sample) => score(sample, same.get(sample.completion) ?? 0));
  },
};

/** @param {Molt.Sample} sample @param {number} same @returns {Molt.Verdict} */
function score(sample, same) {
  const label = sample.task.label;
  if (label == null) {
    return { tag: "infra", val: "the row has no label" }; // the grader's fault: dropped and counted
  }
  const solved = sample.completion.includes(label);
  return { tag: "scored", val: { reward: solved ? 1 / same : 0, solved, metrics: [{ name: "same", value: same }] } };
}
