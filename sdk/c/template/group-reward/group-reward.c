// A right answer is worth 1, divided among the rollouts of the prompt that found it in the same words.
#include "plugin.h"

static bool contains(molt_string_t text, molt_string_t part) {
  for (size_t i = 0; i + part.len <= text.len; i++) {
    if (molt_equal((molt_string_t){text.ptr + i, part.len}, part)) return true;
  }
  return false;
}

static molt_verdict_t score(const molt_sample_t *sample, const exports_group_reward_list_sample_t *all) {
  if (!sample->task.label.is_some) return molt_infra("the row has no label"); // the grader's fault: dropped and counted
  size_t same = 0;
  for (size_t i = 0; i < all->len; i++) same += molt_equal(all->ptr[i].completion, sample->completion);
  bool solved = contains(sample->completion, sample->task.label.val);
  molt_verdict_t verdict = molt_scored(solved ? 1.0 / (double)same : 0.0, solved);
  MOLT_PUSH(&verdict.val.scored.metrics, molt_metric("same", (double)same));
  return verdict;
}

void exports_group_reward_score_group(
    exports_group_reward_list_sample_t *samples, exports_group_reward_list_verdict_t *ret) {
  *ret = (exports_group_reward_list_verdict_t){0};
  for (size_t i = 0; i < samples->len; i++) MOLT_PUSH(ret, score(&samples->ptr[i], samples));
  exports_group_reward_list_sample_free(samples);
}
