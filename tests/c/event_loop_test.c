/* SPDX-License-Identifier: Apache-2.0 */
/* Event loops over the C API: a completion queue and a watch of notifications, each by one descriptor. */
#include "agents.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

enum { requests = 5 };

static int is_readable(int32_t descriptor, int timeout_ms) {
  struct pollfd waiting = {descriptor, POLLIN, 0};
  return poll(&waiting, 1, timeout_ms) == 1;
}

/* The status with which a child ends that runs `work`. */
static int status_in_child(int32_t (*work)(void*), void* argument) {
  const pid_t child = fork();
  if (child == 0) _exit(work(argument));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* ---------------------------------------------------------------- completion queues */

static headrace_completion_queue* open_queue(int32_t* descriptor) {
  headrace_completion_queue* queue = NULL;
  CHECK(headrace_completion_queue_open(&queue, fresh()) == 0);
  CHECK(headrace_completion_queue_event_fd(queue, descriptor, fresh()) == 0);
  CHECK(!is_readable(*descriptor, 0));
  return queue;
}

static headrace_request* make_write(headrace_agent* agent, headrace_page_list* local,
                                    headrace_page_list* remote) {
  SIZED(headrace_request_part, part);
  part.local = local;
  part.remote = remote;
  headrace_request* request = NULL;
  CHECK(headrace_agent_make_request(agent, HEADRACE_OPERATION_WRITE, &part, 1, NULL, &request, fresh()) == 0);
  return request;
}

/* Takes numbers, two at a time, until each of 0 to requests - 1 has come once. */
static void take_all(headrace_completion_queue* queue, int32_t descriptor) {
  int came[requests] = {0};
  for (int left = requests; left > 0;) {
    CHECK(is_readable(descriptor, 10000));
    uint64_t numbers[2], count = 0;
    CHECK(headrace_completion_queue_take(queue, numbers, 2, &count, fresh()) == 0);
    CHECK(count == 1 || count == 2);
    for (uint64_t i = 0; i < count; ++i) CHECK(numbers[i] < requests && came[numbers[i]]++ == 0);
    left -= (int)count;
  }
  CHECK(!is_readable(descriptor, 0));
  uint64_t number = 0, count = 7;
  CHECK(headrace_completion_queue_take(queue, &number, 1, &count, fresh()) == 0 && count == 0);
}

static int32_t take_nothing(void* queue) {
  uint64_t count = 0;
  return headrace_completion_queue_take(queue, NULL, 0, &count, NULL);
}

static void one_descriptor_tells_of_the_completions_of_many_requests(headrace_agent* left,
                                                                     headrace_agent* right) {
  static unsigned char source[pages * page_bytes], target[pages * page_bytes];
  headrace_page_list* local = prepare(left, NULL, register_bytes(left, source, sizeof source, NULL));
  const uint32_t region = register_bytes(right, target, sizeof target, NULL);
  meet(left, right);
  headrace_page_list* remote = prepare(left, "right", region);
  int32_t descriptor = -1;
  headrace_completion_queue* queue = open_queue(&descriptor);
  headrace_request* all[requests];
  for (int i = 0; i < requests; ++i) all[i] = make_write(left, local, remote);
  for (int i = 0; i < requests; ++i) {
    CHECK(headrace_request_post(all[i], NULL, fresh()) == 0);
    CHECK(headrace_completion_queue_add(queue, all[i], (uint64_t)i, fresh()) == 0);
  }
  take_all(queue, descriptor);
  for (int i = 0; i < requests; ++i) CHECK(headrace_request_state(all[i]) == HEADRACE_STATE_DONE);

  for (int i = 0; i < requests; ++i) /* of a request that has ended: at once */
    CHECK(headrace_completion_queue_add(queue, all[i], (uint64_t)i, fresh()) == 0);
  CHECK(is_readable(descriptor, 0) && take_nothing(queue) == 0 && is_readable(descriptor, 0));
  CHECK(status_in_child(take_nothing, queue) == invalid_argument);
  take_all(queue, descriptor);

  CHECK(headrace_request_post(all[0], NULL, fresh()) == 0);
  CHECK(headrace_completion_queue_add(queue, all[0], 1, fresh()) == 0);
  headrace_completion_queue_free(queue); /* before what it waits for */
  CHECK(headrace_request_wait(all[0], ten_seconds, fresh()) == 0);
  for (int i = 0; i < requests; ++i) headrace_request_free(all[i]);
  headrace_page_list_free(remote);
  headrace_page_list_free(local);
}

static void a_queue_refuses_what_is_missing(void) {
  int32_t descriptor = -1;
  headrace_completion_queue* queue = open_queue(&descriptor);
  uint64_t number = 0, count = 0;
  CHECK(headrace_completion_queue_open(NULL, fresh()) == invalid_argument);
  CHECK(headrace_completion_queue_add(NULL, NULL, 1, fresh()) == invalid_argument);
  CHECK(headrace_completion_queue_add(queue, NULL, 1, fresh()) == invalid_argument);
  CHECK(strcmp(text(), "request is NULL") == 0);
  CHECK(headrace_completion_queue_take(NULL, &number, 1, &count, fresh()) == invalid_argument);
  CHECK(headrace_completion_queue_take(queue, NULL, 1, &count, fresh()) == invalid_argument);
  CHECK(headrace_completion_queue_take(queue, &number, 1, NULL, fresh()) == invalid_argument);
  CHECK(headrace_completion_queue_event_fd(queue, NULL, fresh()) == invalid_argument);
  headrace_completion_queue_free(queue);
}

/* ---------------------------------------------------------------- watches of notifications */

static headrace_notification_watch* watch(headrace_agent* agent, const char* peer, const char* prefix,
                                          int32_t* descriptor) {
  headrace_notification_watch* made = NULL;
  CHECK(headrace_agent_watch_notifications(agent, peer, prefix, &made, fresh()) == 0);
  CHECK(headrace_notification_watch_fd(made, descriptor, fresh()) == 0);
  return made;
}

static uint64_t take(headrace_agent* agent, const char* prefix) {
  headrace_notifications* taken = NULL;
  CHECK(headrace_agent_take_notifications(agent, NULL, prefix, &taken, fresh()) == 0);
  const uint64_t count = headrace_notifications_count(taken);
  headrace_notifications_free(taken);
  return count;
}

static int32_t drain(void* watch) { return headrace_notification_watch_drain(watch, NULL); }

static void a_watch_wakes_for_notifications_that_pass_its_filter(headrace_agent* left,
                                                                 headrace_agent* right) {
  meet(left, right);
  int32_t fits = -1, any = -1, other = -1, late = -1;
  headrace_notification_watch* go = watch(right, "left", "go", &fits);
  headrace_notification_watch* all = watch(right, NULL, NULL, &any);
  headrace_notification_watch* nobody = watch(right, "nobody", NULL, &other);
  CHECK(headrace_agent_notify(left, "right", "wait", 4, fresh()) == 0);
  CHECK(is_readable(any, 10000) && !is_readable(fits, 0));
  CHECK(headrace_agent_notify(left, "right", "go 1", 4, fresh()) == 0);
  CHECK(is_readable(fits, 10000) && !is_readable(other, 0));

  headrace_notification_watch* waiting = watch(right, NULL, "go", &late);
  CHECK(is_readable(late, 0)); /* one waits already */
  headrace_notification_watch_free(waiting);
  CHECK(status_in_child(drain, go) == invalid_argument && is_readable(fits, 0));
  CHECK(headrace_notification_watch_drain(go, fresh()) == 0);
  CHECK(take(right, "go") == 1 && take(right, NULL) == 1 && !is_readable(fits, 0));
  CHECK(headrace_agent_notify(left, "right", "go 2", 4, fresh()) == 0);
  CHECK(is_readable(fits, 10000) && !is_readable(other, 0));
  headrace_notification_watch_free(nobody);
  headrace_notification_watch_free(all);
  headrace_notification_watch_free(go);
}

static void a_watch_wakes_when_its_agent_is_closed_and_may_be_freed_later(void) {
  headrace_agent* agent = open_agent("closing");
  int32_t descriptor = -1;
  headrace_notification_watch* made = watch(agent, "nobody", NULL, &descriptor);
  CHECK(!is_readable(descriptor, 0));
  headrace_agent_shut(agent);
  CHECK(is_readable(descriptor, 0));
  headrace_notification_watch* refused = NULL;
  CHECK(headrace_agent_watch_notifications(agent, NULL, NULL, &refused, fresh()) == invalid_argument);
  CHECK(refused == NULL);
  headrace_agent_close(agent);
  CHECK(headrace_notification_watch_drain(made, fresh()) == 0);
  headrace_notification_watch_free(made);
}

static void a_watch_refuses_what_is_missing(headrace_agent* agent) {
  int32_t descriptor = -1;
  headrace_notification_watch* made = watch(agent, NULL, NULL, &descriptor);
  CHECK(headrace_agent_watch_notifications(NULL, NULL, NULL, &made, fresh()) == invalid_argument);
  CHECK(headrace_agent_watch_notifications(agent, NULL, NULL, NULL, fresh()) == invalid_argument);
  CHECK(headrace_notification_watch_fd(NULL, &descriptor, fresh()) == invalid_argument);
  CHECK(headrace_notification_watch_fd(made, NULL, fresh()) == invalid_argument);
  CHECK(headrace_notification_watch_drain(NULL, fresh()) == invalid_argument);
  CHECK(strcmp(text(), "watch is NULL") == 0);
  headrace_notification_watch_free(made);
}

int main(void) {
  headrace_agent* left = open_agent("left");
  headrace_agent* right = open_agent("right");
  one_descriptor_tells_of_the_completions_of_many_requests(left, right);
  a_queue_refuses_what_is_missing();
  a_watch_wakes_for_notifications_that_pass_its_filter(left, right);
  a_watch_refuses_what_is_missing(right);
  headrace_agent_close(left);
  headrace_agent_close(right);
  a_watch_wakes_when_its_agent_is_closed_and_may_be_freed_later();
  (void)fresh();
  puts("event loops over the C API work");
  return 0;
}
