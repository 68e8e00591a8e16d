// A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words.

export const groupReward: Molt.GroupReward = {
  scoreGroup(samples) {
    const same = new Map<string, number>();
    for (const { completion } of samples) same.set(completion, (same.get(completion) ?? 0) + 1);
    return samples.map((sample) => score(sample, same.get(sample.completion) ?? 0));
  },
};

function score(sample: Molt.Sample, same: number): Molt.Verdict {
  const label = sample.task.label;
  if (label == null) {
    return { tag: "infra", val: "the row has no label" }; // the grader's fault: dropped and counted
  }
  const solved = sample.completion.includes(label);
  return { tag: "scored", val: { reward: solved ? 1 / same : 0, solved, metrics: [{ name: "same", value: same }] } };
}
