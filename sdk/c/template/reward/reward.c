// Closeness: half the share of the label's beginning that the answer has, and 1 for the label itself.
#include "plugin.h"

static bool continues_character(uint8_t byte) { return (byte & 0xC0) == 0x80; }

static size_t characters(molt_string_t text) {
  size_t count = 0;
  for (size_t i = 0; i < text.len; i++) count += !continues_character(text.ptr[i]);
  return count;
}

// How many characters the two begin with in common.
static size_t common(molt_string_t a, molt_string_t b) {
  size_t end = 0;
  while (end < a.len && end < b.len && a.ptr[end] == b.ptr[end]) end++;
  size_t count = characters((molt_string_t){a.ptr, end});
  // Within a character, its beginning was the same and its end is not.
  bool within = (end < a.len && continues_character(a.ptr[end])) || (end < b.len && continues_character(b.ptr[end]));
  return within ? count - 1 : count;
}

static molt_verdict_t score(const molt_sample_t *sample) {
  if (!sample->task.label.is_some) return molt_infra("the row has no label");
  molt_string_t answer = molt_trim(sample->completion);
  molt_string_t label = molt_trim(sample->task.label.val);
  if (answer.len == 0) return molt_invalid("the answer is empty");

  size_t length = characters(answer), expected = characters(label);
  bool solved = molt_equal(answer, label);
  double closeness = 0.5 * (double)common(answer, label) / (double)(length > expected ? length : expected);
  molt_verdict_t verdict = molt_scored(solved ? 1.0 : closeness, solved);
  MOLT_PUSH(&verdict.val.scored.metrics, molt_metric("length", (double)length));
  return verdict;
}

void exports_reward_score(molt_sample_t *sample, molt_verdict_t *ret) {
  *ret = score(sample);
  molt_sample_free(sample);
}
