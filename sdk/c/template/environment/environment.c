// Guess: the model looks for a whole number from 1 to 100 and is told whether it is higher or lower.
#include "plugin.h"

#define GUESSES 7

struct exports_environment_episode_t {
  molt_task_t task;
  uint64_t secret;
  unsigned guesses;
};

exports_environment_own_episode_t exports_environment_constructor_episode(molt_task_t *task) {
  exports_environment_episode_t *episode = molt_zeroed(1, sizeof *episode);
  episode->task = *task; // kept until the destructor
  episode->secret = 1 + task->seed % 100;
  return exports_environment_episode_new(episode);
}

void exports_environment_episode_destructor(exports_environment_episode_t *episode) {
  molt_task_free(&episode->task);
  free(episode);
}

bool exports_environment_method_episode_reset(
    exports_environment_episode_t *self, exports_environment_list_message_t *ret, molt_failure_t *err) {
  (void)err;
  *ret = (exports_environment_list_message_t){0};
  for (size_t i = 0; i < self->task.messages.len; i++) {
    const molt_message_t *message = &self->task.messages.ptr[i];
    MOLT_PUSH(ret, (molt_message_t){message->role, molt_copy(message->content)});
  }
  MOLT_PUSH(ret, molt_message(MOLT_ROLE_USER, "I think of a whole number from 1 to 100. What is it?"));
  return true;
}

// The first run of digits, or 0 if there is none or it is longer than 9 digits.
static bool first_number(molt_string_t text, uint64_t *number) {
  size_t start = 0;
  while (start < text.len && (text.ptr[start] < '0' || text.ptr[start] > '9')) start++;
  size_t end = start;
  *number = 0;
  for (; end < text.len && text.ptr[end] >= '0' && text.ptr[end] <= '9'; end++) {
    if (end - start < 9) *number = *number * 10 + (text.ptr[end] - '0');
  }
  return end > start && end - start <= 9;
}

static exports_environment_transition_t step(exports_environment_episode_t *self, molt_string_t text) {
  exports_environment_transition_t next = {0};
  const char *answer = "Say a whole number.";
  uint64_t guess;
  self->guesses++;
  bool number = first_number(text, &guess);
  if (number && guess == self->secret) {
    next.done = true;
    next.reward = (molt_option_f64_t){true, 1.0};
    next.solved = (molt_option_bool_t){true, true};
  } else if (self->guesses >= GUESSES) {
    next.done = true;
    next.reward = (molt_option_f64_t){true, 0.0};
    next.solved = (molt_option_bool_t){true, false};
  } else if (number) {
    next.reward = (molt_option_f64_t){true, -0.05};
    answer = self->secret > guess ? "Higher." : "Lower.";
  }
  if (!next.done) MOLT_PUSH(&next.messages, molt_message(MOLT_ROLE_USER, answer));
  MOLT_PUSH(&next.metrics, molt_metric("guesses", self->guesses));
  return next;
}

bool exports_environment_method_episode_step(
    exports_environment_episode_t *self, exports_environment_action_t *action, exports_environment_transition_t *ret,
    molt_failure_t *err) {
  (void)err;
  *ret = step(self, action->text);
  exports_environment_action_free(action);
  return true;
}
