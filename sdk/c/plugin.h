// What a plugin in C includes. `molt plugin build` generates molt.h, with the types and functions of the contract,
// before it compiles; this file adds what every plugin would write again.
//
// Memory: the arguments of an exported function are yours, so free them (`molt_sample_free(sample)`); what you
// return is the host's, so it must come from malloc. The functions here copy the text that they are given.
#ifndef MOLT_PLUGIN_H
#define MOLT_PLUGIN_H

#include "molt.h"
#include <stdlib.h>
#include <string.h>

// A view of a text literal or of other memory that outlives the view. Never return one: see `molt_copy`.
static inline molt_string_t molt_view(const char *text) {
  return (molt_string_t){(uint8_t *)text, strlen(text)};
}

// A copy that may be returned.
static inline molt_string_t molt_copy(molt_string_t text) {
  molt_string_t copy;
  molt_string_dup_n(&copy, (const char *)text.ptr, text.len);
  return copy;
}

static inline bool molt_equal(molt_string_t a, molt_string_t b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

// A view without the ASCII white space at both ends.
static inline molt_string_t molt_trim(molt_string_t text) {
  const char *space = " \t\n\r\v\f";
  while (text.len > 0 && text.ptr[0] != 0 && strchr(space, text.ptr[0])) text.ptr++, text.len--;
  while (text.len > 0 && text.ptr[text.len - 1] != 0 && strchr(space, text.ptr[text.len - 1])) text.len--;
  return text;
}

// Memory for `count` items, all zero. The call ends when there is none.
static inline void *molt_zeroed(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) abort();
  return memory;
}

// Makes room for one more item behind `length` of them; for MOLT_PUSH.
static inline void *molt_grown(void *items, size_t length, size_t size) {
  if (length & (length - 1)) return items; // room doubles at each power of two
  items = realloc(items, (length ? 2 * length : 1) * size);
  if (!items) abort();
  return items;
}

// Appends an item to a list that began as {0} and grows by nothing else, e.g. MOLT_PUSH(ret, message).
#define MOLT_PUSH(list, ...)                                                        \
  ((list)->ptr = molt_grown((list)->ptr, (list)->len, sizeof *(list)->ptr),         \
   (list)->ptr[(list)->len++] = (__VA_ARGS__))

#ifdef MOLT_ROLE_USER // types of the contract that an estimator does not see

static inline molt_message_t molt_message(molt_role_t role, const char *text) {
  return (molt_message_t){role, molt_copy(molt_view(text))};
}

static inline molt_metric_t molt_metric(const char *name, double value) {
  return (molt_metric_t){molt_copy(molt_view(name)), value};
}

// A score. `solved` counts for accuracy, whatever the reward.
static inline molt_verdict_t molt_scored(double reward, bool solved) {
  molt_grade_t grade = {.reward = reward, .solved = {.is_some = true, .val = solved}};
  return (molt_verdict_t){.tag = MOLT_VERDICT_SCORED, .val.scored = grade};
}

// The model's output cannot be scored: the run's lowest reward, still trained.
static inline molt_verdict_t molt_invalid(const char *why) {
  return (molt_verdict_t){.tag = MOLT_VERDICT_INVALID, .val.invalid = molt_copy(molt_view(why))};
}

// The grader failed: the rollout is dropped and counted.
static inline molt_verdict_t molt_infra(const char *why) {
  return (molt_verdict_t){.tag = MOLT_VERDICT_INFRA, .val.infra = molt_copy(molt_view(why))};
}

#endif
#endif
