/* SPDX-License-Identifier: Apache-2.0 */
/* Windows in C: memory of every rank, operations on it, and what they refuse. */
#include "ranks.h"

#include <headrace/c/comm_window.h>

enum { size = 3, count = 1000 };

static headrace_window* new_window(headrace_comm* comm) {
  headrace_window* window = NULL;
  CHECK(headrace_comm_new_window(comm, &window, fresh()) == 0 && window != NULL);
  return window;
}

/* A window with memory of its own; `data` becomes its elements. */
static headrace_window* allocated(headrace_comm* comm, int64_t** data) {
  headrace_window* window = new_window(comm);
  headrace_elements own;
  CHECK(headrace_window_allocate(window, count, HEADRACE_INT64, &own, fresh()) == 0);
  CHECK(own.data != NULL && own.count == count && own.dtype == HEADRACE_INT64);
  *data = own.data;
  return window;
}

static void end(headrace_window* window) {
  CHECK(headrace_window_tensor_deregister(window, fresh()) == 0);
  headrace_window_free(window);
}

/* ---------------------------------------------------------------- what moves */

/* Each rank puts its number into its part of the next rank, which reads it, and its own from there. */
static void put_to_the_next_rank(headrace_comm* comm, headrace_window* window, const int64_t* mine) {
  const int me = headrace_comm_rank(comm), next = (me + 1) % size, last = (me + size - 1) % size;
  int64_t numbers[10], got[10] = {0};
  for (int i = 0; i < 10; ++i) numbers[i] = me + 1;
  const headrace_elements from = {numbers, 10, HEADRACE_INT64}, to = {got, 10, HEADRACE_INT64};
  CHECK(headrace_window_put(window, &from, next, 5, NULL, NULL, fresh()) == 0);
  CHECK(headrace_window_signal(window, next, HEADRACE_SIGNAL_ADD, 1, NULL, NULL, fresh()) == 0);
  uint64_t before = 0;
  CHECK(headrace_window_wait_signal(window, last, ten_seconds, &before, fresh()) == 0 && before == 1);
  for (int i = 0; i < 10; ++i) CHECK(mine[5 + i] == last + 1);
  CHECK(mine[4] == 0 && mine[15] == 0);
  CHECK(headrace_window_get(window, &to, next, 5, NULL, NULL, fresh()) == 0);
  for (int i = 0; i < 10; ++i) CHECK(got[i] == me + 1);
}

static void what_is_put_into_allocated_memory_is_there_after_a_signal(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  put_to_the_next_rank(comm, window, mine);
  end(window);
}

static void what_is_put_into_registered_memory_is_there_after_a_signal(headrace_comm* comm) {
  int64_t mine[count] = {0};
  const headrace_elements all = {mine, count, HEADRACE_INT64};
  headrace_elements own;
  headrace_window* window = new_window(comm);
  CHECK(headrace_window_tensor_register(window, &all, fresh()) == 0);
  CHECK(headrace_window_tensor(window, &own, fresh()) == 0 && own.data == mine && own.count == count);
  put_to_the_next_rank(comm, window, mine);
  end(window);
}

static void signals_set_and_add_and_every_comparison_waits_for_its_own(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  const int me = headrace_comm_rank(comm);
  CHECK(headrace_window_signal(window, me, HEADRACE_SIGNAL_SET, 40, NULL, NULL, fresh()) == 0);
  CHECK(headrace_window_signal(window, me, HEADRACE_SIGNAL_ADD, 2, NULL, NULL, fresh()) == 0);
  static const struct {
    int32_t comparison;
    uint64_t holds, fails;
  } rows[] = {{HEADRACE_COMPARE_EQ, 42, 41}, {HEADRACE_COMPARE_NE, 41, 42}, {HEADRACE_COMPARE_LT, 43, 42},
              {HEADRACE_COMPARE_LE, 42, 41}, {HEADRACE_COMPARE_GT, 41, 42}, {HEADRACE_COMPARE_GE, 42, 43}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    uint64_t seen = 0;
    CHECK(headrace_window_wait_signal_until(window, me, rows[i].comparison, rows[i].holds, ten_seconds, &seen,
                                            fresh()) == 0);
    CHECK(seen == 42);
    CHECK(headrace_window_wait_signal_until(window, me, rows[i].comparison, rows[i].fails, milliseconds, NULL,
                                            fresh()) == timed_out);
  }
  CHECK(headrace_window_wait_signal(window, me, -1, NULL, fresh()) == 0); /* takes one */
  CHECK(headrace_window_wait_signal_until(window, me, HEADRACE_COMPARE_EQ, 41, -1, NULL, fresh()) == 0);
  end(window);
}

static void additions_of_all_ranks_are_all_counted(headrace_comm* comm) {
  int64_t *mine = NULL, before = -1;
  headrace_window* window = allocated(comm, &mine);
  for (int i = 0; i < 100; ++i)
    CHECK(headrace_window_atomic_add(window, 1, 7, -3, -1, i == 0 ? &before : NULL, fresh()) == 0);
  CHECK(before <= 0 && before % 3 == 0);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  CHECK(headrace_window_atomic_add(window, 1, 7, 0, -1, &before, fresh()) == 0 && before == -300 * size);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  end(window);
}

static void asynchronous_puts_have_ended_after_flush(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  headrace_window_options options = HEADRACE_WINDOW_OPTIONS_INIT;
  options.async = 1;
  headrace_work* works[size];
  const int64_t number = headrace_comm_rank(comm) + 1;
  const headrace_elements one = {(void*)&number, 1, HEADRACE_INT64};
  for (int rank = 0; rank < size; ++rank)
    CHECK(headrace_window_put(window, &one, rank, (uint64_t)number, &options, &works[rank], fresh()) == 0);
  CHECK(headrace_window_flush(window, ten_seconds, fresh()) == 0);
  for (int rank = 0; rank < size; ++rank) {
    CHECK(headrace_work_status(works[rank]) == HEADRACE_WORK_COMPLETED);
    headrace_work_free(works[rank]);
  }
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  for (int rank = 0; rank < size; ++rank) CHECK(mine[rank + 1] == rank + 1);
  end(window);
}

/* ---------------------------------------------------------------- the memory of other ranks */

static void allocated_memory_is_mapped_and_stays_while_its_owner_lives(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  const int me = headrace_comm_rank(comm), next = (me + 1) % size;
  headrace_window_attr attr = {.struct_size = sizeof attr, .access = -1};
  CHECK(headrace_window_get_attr(window, next, &attr, fresh()) == 0);
  CHECK(attr.access == HEADRACE_WINDOW_UNIFIED && attr.count == count);
  headrace_elements theirs;
  headrace_remote_tensor* owner = NULL;
  CHECK(headrace_window_map_remote_tensor(window, next, &theirs, &owner, fresh()) == 0);
  CHECK(theirs.count == count && theirs.dtype == HEADRACE_INT64);
  ((int64_t*)theirs.data)[3] = me + 10;
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  CHECK(mine[3] == (me + size - 1) % size + 10);
  end(window);
  CHECK(((int64_t*)theirs.data)[3] == me + 10);
  headrace_remote_tensor_free(owner);
}

static void registered_memory_is_separate(headrace_comm* comm) {
  float mine[4] = {0};
  const headrace_elements four = {mine, 4, HEADRACE_FLOAT32};
  headrace_window* window = new_window(comm);
  CHECK(headrace_window_tensor_register(window, &four, fresh()) == 0);
  const int next = (headrace_comm_rank(comm) + 1) % size;
  headrace_window_attr attr = {.struct_size = sizeof attr};
  CHECK(headrace_window_get_attr(window, next, &attr, fresh()) == 0);
  CHECK(attr.access == HEADRACE_WINDOW_SEPARATE && attr.count == 4);
  headrace_elements theirs;
  headrace_remote_tensor* owner = NULL;
  CHECK(headrace_window_map_remote_tensor(window, next, &theirs, &owner, fresh()) == not_supported);
  CHECK(owner == NULL && strstr(text(), "cannot be mapped") != NULL);
  end(window);
}

/* ---------------------------------------------------------------- what is refused */

static int refused(int32_t code, headrace_work* const* work, const char* part) {
  return code == invalid_argument && *work == NULL && strstr(text(), part) != NULL;
}

static void null_and_short_structs_are_refused(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  const headrace_elements one = {mine, 1, HEADRACE_INT64};
  headrace_work* work = (headrace_work*)mine; /* becomes NULL */
  CHECK(refused(headrace_window_put(NULL, &one, 0, 0, NULL, &work, fresh()), &work, "window is NULL"));
  CHECK(refused(headrace_window_put(window, NULL, 0, 0, NULL, &work, fresh()), &work, "tensor is NULL"));
  CHECK(refused(headrace_window_get(window, NULL, 0, 0, NULL, &work, fresh()), &work, "tensor is NULL"));
  headrace_window_options options = HEADRACE_WINDOW_OPTIONS_INIT;
  options.struct_size = sizeof(size_t);
  CHECK(refused(headrace_window_signal(window, 0, 0, 1, &options, &work, fresh()), &work,
                "options: its struct_size"));
  headrace_window_attr attr = {.struct_size = sizeof(size_t)};
  CHECK(headrace_window_get_attr(window, 0, &attr, fresh()) == invalid_argument);
  CHECK(strstr(text(), "attr: its struct_size") != NULL);
  CHECK(headrace_window_flush(NULL, -1, fresh()) == invalid_argument);
  CHECK(headrace_window_wait_signal(NULL, 0, 0, NULL, fresh()) == invalid_argument);
  CHECK(headrace_comm_new_window(NULL, &window, fresh()) == invalid_argument);
  CHECK(headrace_comm_new_window(comm, NULL, fresh()) == invalid_argument);
  end(window);
}

static void wrong_arguments_end_nothing(headrace_comm* comm) {
  int64_t* mine = NULL;
  headrace_window* window = new_window(comm);
  headrace_elements own;
  CHECK(headrace_window_tensor(window, &own, fresh()) == invalid_argument);
  CHECK(strstr(text(), "no memory is registered") != NULL);
  CHECK(headrace_window_allocate(window, 1, 77, NULL, fresh()) == invalid_argument);
  CHECK(strstr(text(), "element type 77 does not exist") != NULL);
  headrace_window_free(window);

  window = allocated(comm, &mine);
  const headrace_elements two = {mine, 2, HEADRACE_INT64}, floats = {mine, 2, HEADRACE_FLOAT64};
  headrace_work* work = NULL;
  CHECK(refused(headrace_window_put(window, &two, 0, count - 1, NULL, &work, fresh()), &work,
                "2 elements from element 999 on: rank 0 has 1000"));
  CHECK(refused(headrace_window_put(window, &two, 0, UINT64_MAX, NULL, &work, fresh()), &work, "on: rank 0"));
  CHECK(refused(headrace_window_get(window, &two, size, 0, NULL, &work, fresh()), &work, "no rank 3"));
  CHECK(refused(headrace_window_get(window, &floats, 0, 0, NULL, &work, fresh()), &work, "are float64"));
  CHECK(refused(headrace_window_signal(window, 0, 2, 1, NULL, &work, fresh()), &work, "a signal of kind 2"));
  CHECK(headrace_window_wait_signal_until(window, 0, 6, 1, 0, NULL, fresh()) == invalid_argument);
  CHECK(strstr(text(), "comparison 6 does not exist") != NULL);
  CHECK(headrace_window_atomic_add(window, 0, count, 1, -1, NULL, fresh()) == invalid_argument);
  end(window);
}

static void names_and_backends_without_windows(void) {
  CHECK(strcmp(headrace_window_access_name(HEADRACE_WINDOW_UNIFIED), "unified") == 0);
  CHECK(strcmp(headrace_window_access_name(HEADRACE_WINDOW_SEPARATE), "separate") == 0);
  CHECK(strcmp(headrace_window_access_name(2), "unknown") == 0);
  CHECK(strcmp(headrace_window_access_name(-1), "unknown") == 0);
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.backend = "fake";
  headrace_comm* comm = NULL;
  headrace_window* window = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  CHECK(headrace_comm_new_window(comm, &window, fresh()) == not_supported && window == NULL);
  headrace_comm_close(comm);
  headrace_window_free(NULL);
  headrace_remote_tensor_free(NULL);
}

static void a_window_may_be_freed_after_its_communicator(void) {
  headrace_comm* comm = open_rank("c-window-late", 0, 1);
  int64_t* mine = NULL;
  headrace_window* window = allocated(comm, &mine);
  headrace_comm_close(comm);
  CHECK(headrace_window_signal(window, 0, 0, 1, NULL, NULL, fresh()) == invalid_argument);
  headrace_window_free(window);
}

int main(void) {
  with_ranks("c-window-put", size, what_is_put_into_allocated_memory_is_there_after_a_signal);
  with_ranks("c-window-own", size, what_is_put_into_registered_memory_is_there_after_a_signal);
  with_ranks("c-window-signals", size, signals_set_and_add_and_every_comparison_waits_for_its_own);
  with_ranks("c-window-add", size, additions_of_all_ranks_are_all_counted);
  with_ranks("c-window-async", size, asynchronous_puts_have_ended_after_flush);
  with_ranks("c-window-mapped", size, allocated_memory_is_mapped_and_stays_while_its_owner_lives);
  with_ranks("c-window-separate", size, registered_memory_is_separate);
  with_ranks("c-window-null", size, null_and_short_structs_are_refused);
  with_ranks("c-window-wrong", size, wrong_arguments_end_nothing);
  names_and_backends_without_windows();
  a_window_may_be_freed_after_its_communicator();
  (void)fresh();
  return 0;
}
