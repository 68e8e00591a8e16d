// Leave one out: a rollout's advantage is its reward less the mean reward of the others of its group.
#include "plugin.h"

void exports_estimator_describe(exports_estimator_traits_t *ret) {
  *ret = (exports_estimator_traits_t){.needs_group = true};
}

bool exports_estimator_estimate(
    exports_estimator_batch_t *batch, exports_estimator_estimates_t *ret, molt_string_t *err) {
  (void)err;
  const float *rewards = batch->rewards.ptr;
  const uint32_t *groups = batch->groups.ptr;
  size_t rollouts = batch->rewards.len, group_count = 0;
  for (size_t i = 0; i < rollouts; i++) {
    if (groups[i] >= group_count) group_count = (size_t)groups[i] + 1;
  }

  double *sums = molt_zeroed(group_count, sizeof *sums);
  size_t *sizes = molt_zeroed(group_count, sizeof *sizes);
  for (size_t i = 0; i < rollouts; i++) {
    sums[groups[i]] += rewards[i];
    sizes[groups[i]]++;
  }

  float *advantages = molt_zeroed(rollouts, sizeof *advantages);
  for (size_t i = 0; i < rollouts; i++) {
    size_t others = sizes[groups[i]] - 1;
    double reward = rewards[i];
    if (others > 0) advantages[i] = (float)(reward - (sums[groups[i]] - reward) / (double)others);
  }
  free(sums);
  free(sizes);

  ret->advantages.tag = EXPORTS_ESTIMATOR_CREDIT_PER_ROLLOUT;
  ret->advantages.val.per_rollout = (molt_list_f32_t){advantages, rollouts};
  // The returns are the rewards: their memory goes to the host, the rest of the batch is freed.
  ret->returns.tag = EXPORTS_ESTIMATOR_CREDIT_PER_ROLLOUT;
  ret->returns.val.per_rollout = batch->rewards;
  batch->rewards = (molt_list_f32_t){0};
  exports_estimator_batch_free(batch);
  return true;
}
