/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs in C share that use communicators: ranks as threads of this process. */
#ifndef HEADRACE_TESTS_RANKS_H
#define HEADRACE_TESTS_RANKS_H

#include "check.h"

#include <headrace/c/comm.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { most_ranks = 3 };
enum {
  invalid_argument = 2,
  not_supported = 4,
  not_found = 3,
  timed_out = 5,
  canceled = 6,
  exhausted = 8
}; /* codes of errors */

static const int64_t milliseconds = 1000000, ten_seconds = 10000000000;

typedef struct ranks_run ranks_run;
typedef void (*rank_body)(headrace_comm* comm);

struct ranks_run {
  const char* name;
  int32_t size;
  rank_body body;
};

typedef struct rank_of_run {
  const ranks_run* run;
  int32_t rank;
} rank_of_run;

static inline headrace_comm_options rank_options(const char* name, int32_t rank, int32_t size) {
  static const char* const hints[] = {"backends", "shm", NULL};
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.meeting = "memory:c-tests";
  options.timeout_ns = 6 * ten_seconds;
  options.hints = hints;
  return options;
}

static inline headrace_comm* open_rank(const char* name, int32_t rank, int32_t size) {
  const headrace_comm_options options = rank_options(name, rank, size);
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  return comm;
}

static inline void* run_rank(void* argument) {
  const rank_of_run* rank = argument;
  headrace_comm* comm = open_rank(rank->run->name, rank->rank, rank->run->size);
  rank->run->body(comm);
  headrace_comm_close(comm);
  (void)fresh();
  return NULL;
}

/* Runs `function` with each of `count` arguments, each on a thread of its own. */
static inline void on_threads(void* (*function)(void*), void* arguments, size_t argument_bytes, int count) {
  pthread_t threads[most_ranks];
  for (int i = 0; i < count; ++i)
    CHECK(pthread_create(&threads[i], NULL, function, (char*)arguments + (size_t)i * argument_bytes) == 0);
  for (int i = 0; i < count; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Runs `body` as each rank of a communicator. */
static inline void with_ranks(const char* name, int32_t size, rank_body body) {
  const ranks_run run = {name, size, body};
  rank_of_run ranks[most_ranks];
  for (int32_t rank = 0; rank < size; ++rank) ranks[rank] = (rank_of_run){&run, rank};
  on_threads(run_rank, ranks, sizeof ranks[0], size);
}

static inline void wait_for(atomic_int* value, int least) {
  while (atomic_load(value) < least) usleep(1000);
}

#endif
