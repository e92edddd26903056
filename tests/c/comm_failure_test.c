/* SPDX-License-Identifier: Apache-2.0 */
/* What the C API of collectives refuses, and what each rank gets when an operation is late, aborted or comes
 * after the end. */
#include "ranks.h"

#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>

static headrace_elements floats(float* data, uint64_t count) {
  return (headrace_elements){data, count, HEADRACE_FLOAT32};
}

/* Whether the last call was refused with a sentence that has this part, and gave no work. */
static int refused(int32_t code, headrace_work* const* work, const char* part) {
  return code == invalid_argument && (work == NULL || *work == NULL) && strstr(text(), part) != NULL;
}

/* Calls every operation with these arguments, one call for each number; the last number is that of recv. */
enum { operations = 19 };
static int32_t call(int number, headrace_comm* comm, const headrace_elements* data,
                    const headrace_op_options* options, const headrace_message_options* message,
                    headrace_work** work) {
  static const uint64_t splits[] = {4};
  headrace_error** error = fresh();
  switch (number) {
    case 0:
      return headrace_comm_all_reduce(comm, data, data, 0, options, work, error);
    case 1:
      return headrace_comm_all_gather(comm, data, 1, data, options, work, error);
    case 2:
      return headrace_comm_all_gather_v(comm, data, 1, data, options, work, error);
    case 3:
      return headrace_comm_all_gather_single(comm, data, data, options, work, error);
    case 4:
      return headrace_comm_reduce_scatter(comm, data, data, 1, 0, options, work, error);
    case 5:
      return headrace_comm_reduce_scatter_v(comm, data, data, 1, 0, options, work, error);
    case 6:
      return headrace_comm_reduce_scatter_single(comm, data, data, 0, options, work, error);
    case 7:
      return headrace_comm_all_to_all(comm, data, 1, data, 1, options, work, error);
    case 8:
      return headrace_comm_all_to_all_single(comm, data, data, options, work, error);
    case 9:
      return headrace_comm_all_to_all_v_single(comm, data, data, splits, splits, 1, options, work, error);
    case 10:
      return headrace_comm_broadcast(comm, data, 0, options, work, error);
    case 11:
      return headrace_comm_reduce(comm, data, 0, 0, options, work, error);
    case 12:
      return headrace_comm_gather(comm, data, 1, data, 0, options, work, error);
    case 13:
      return headrace_comm_gather_single(comm, data, data, 0, options, work, error);
    case 14:
      return headrace_comm_scatter(comm, data, data, 1, 0, options, work, error);
    case 15:
      return headrace_comm_send(comm, data, 1, message, work, error);
    case 16:
      return headrace_comm_recv(comm, data, 1, message, work, error);
    case 17:
      return headrace_comm_recv(comm, data, HEADRACE_ANY_SOURCE, message, work, error);
    default:
      return headrace_comm_barrier(comm, options, work, error);
  }
}
enum { first_message = 15, barrier = operations - 1 };

/* ---------------------------------------------------------------- wrong arguments */

static void every_operation_refuses_null_and_short_structs(headrace_comm* comm) {
  float zeros[4] = {0};
  const headrace_elements four = floats(zeros, 4);
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  headrace_message_options message = HEADRACE_MESSAGE_OPTIONS_INIT;
  options.struct_size = message.struct_size = sizeof(size_t);
  for (int number = 0; number < operations; ++number) {
    headrace_work* work = (headrace_work*)zeros; /* becomes NULL */
    CHECK(refused(call(number, NULL, &four, NULL, NULL, &work), &work, "comm is NULL"));
    CHECK(refused(call(number, comm, &four, &options, &message, &work), &work, "options: its struct_size"));
    CHECK(call(number, comm, &four, &options, &message, NULL) == invalid_argument);
    if (number == barrier) continue;
    CHECK(refused(call(number, comm, NULL, NULL, NULL, &work), &work, " is NULL"));
    if (number < first_message) CHECK(call(number, comm, &four, NULL, NULL, NULL) == 0); /* nothing ended */
  }
}

static void arguments_are_checked_before_another_rank_knows(headrace_comm* comm) {
  float zeros[4] = {0};
  const headrace_elements four = floats(zeros, 4), three = floats(zeros, 3), null = floats(NULL, 4);
  const headrace_elements ints = {zeros, 4, HEADRACE_INT32}, int64s = {zeros, 1, HEADRACE_INT64};
  const headrace_elements lists[2] = {four, four};
  const uint64_t beyond = (uint64_t)1 << 62, splits[] = {3};
  headrace_work* work = NULL;
#define REFUSED(part, function, ...) \
  CHECK(refused(headrace_comm_##function(comm, __VA_ARGS__, &work, fresh()), &work, part))
  REFUSED("4 elements, the output has 3", all_reduce, &four, &three, 0, NULL);
  REFUSED("is float32, the output is int32", all_reduce, &four, &ints, 0, NULL);
  REFUSED("there is no reduce operation 9", all_reduce, &four, &four, 9, NULL);
  REFUSED("there is no reduce operation -1", all_reduce, &four, &four, -1, NULL);
  REFUSED("there is no reduce operation 9", reduce, &four, 0, 9, NULL);
  REFUSED("there is no reduce operation 9", reduce_scatter, &four, &four, 1, 9, NULL);
  REFUSED("there is no reduce operation 9", reduce_scatter_v, &four, &four, 1, 9, NULL);
  REFUSED("there is no reduce operation 9", reduce_scatter_single, &four, &four, 9, NULL);
  REFUSED("band has no meaning for float32", all_reduce, &four, &four, HEADRACE_REDUCE_BAND, NULL);
  REFUSED("a null address", broadcast, &null, 0, NULL);
  REFUSED("there is no root 1; there are 1 ranks", broadcast, &four, 1, NULL);
  REFUSED("there is no root -1", reduce, &four, -1, 0, NULL);
  REFUSED("there is no root 1", gather, &four, 1, &four, 1, NULL);
  REFUSED("there is no root 1", gather_single, NULL, &four, 1, NULL);
  REFUSED("output is NULL", gather_single, NULL, &four, 0, NULL);
  REFUSED("there is no root 7", scatter, &four, &four, 1, 7, NULL);
  REFUSED("outputs has 2 entries, 1 are expected", all_gather, lists, 2, &four, NULL);
  REFUSED("outputs is NULL", all_gather_v, NULL, 1, &four, NULL);
  REFUSED("check the count", all_gather, lists, beyond, &four, NULL);
  REFUSED("inputs has 0 entries, 1 are expected", scatter, &four, NULL, 0, 0, NULL);
  REFUSED("inputs has 2 entries", all_to_all, &four, 1, lists, 2, NULL);
  REFUSED("add up to 3, its elements are 4", all_to_all_v_single, &four, &four, splits, splits, 1, NULL);
  REFUSED("input_splits is NULL", all_to_all_v_single, &four, &four, splits, NULL, 1, NULL);
  REFUSED("output_splits is NULL", all_to_all_v_single, &four, &four, NULL, splits, 1, NULL);
  REFUSED("output_splits is NULL", device_all_to_all_v_single, &four, &four, NULL, &four, NULL);
  REFUSED("the input are float32: int64", device_all_to_all_v_single, &four, &four, &int64s, &four, NULL);
  REFUSED("rank 0 is no other rank", send, &four, 0, NULL);
  REFUSED("rank 3 is no other rank", recv, &four, 3, NULL);
  for (int32_t dtype = -1; dtype <= HEADRACE_FLOAT8_E5M2 + 1; dtype += HEADRACE_FLOAT8_E5M2 + 2) {
    const headrace_elements other = {zeros, 4, dtype};
    REFUSED("which does not exist", all_reduce, &other, &other, 0, NULL);
    REFUSED("which does not exist", send, &other, 1, NULL);
  }
  const headrace_elements many = floats(zeros, beyond);
  REFUSED("more than any memory", broadcast, &many, 0, NULL);

  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.factor = 0.5;
  REFUSED("needs a whole factor, not 0.5", all_reduce, &ints, &ints, HEADRACE_REDUCE_PREMUL_SUM, &options);
  const char* const no_hint[] = {"algoritm", "one_shot", NULL};
  const char* const no_algorithm[] = {"algorithm", "ring", NULL};
  const char* const no_value[] = {"algorithm", NULL};
  options.hints = no_hint;
  REFUSED("did you mean \"algorithm\"", all_reduce, &four, &four, 0, &options);
  options.hints = no_algorithm;
  REFUSED("hint algorithm is \"ring\"", all_reduce, &four, &four, 0, &options);
  options.hints = no_value;
  REFUSED("option algorithm has no value", all_reduce, &four, &four, 0, &options);
#undef REFUSED
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0 && headrace_comm_is_aborted(comm) == 0);
}

static void settings_are_checked(headrace_comm* comm) {
  const char* const unknown[] = {"lane_byte", "1MiB", NULL};
  const char* const fixed[] = {"lane_bytes", "1MiB", NULL};
  const int32_t twice[] = {0, 0}, far[] = {5};
  headrace_comm* part = NULL;
  CHECK(refused(headrace_comm_set_hints(comm, unknown, fresh()), NULL, "lane_bytes"));
  CHECK(refused(headrace_comm_set_hints(comm, fixed, fresh()), NULL, "is fixed"));
  CHECK(refused(headrace_comm_set_hints(comm, NULL, fresh()), NULL, "hints is NULL"));
  CHECK(headrace_comm_split(comm, twice, 2, "part", NULL, &part, fresh()) == invalid_argument);
  CHECK(headrace_comm_split(comm, far, 1, "part", NULL, &part, fresh()) == invalid_argument);
  CHECK(refused(headrace_comm_split(comm, twice, 1, NULL, NULL, &part, fresh()), NULL, "name is NULL"));
  CHECK(refused(headrace_comm_split(comm, NULL, 1, "part", NULL, &part, fresh()), NULL, "ranks is NULL"));
  CHECK(refused(headrace_comm_split(comm, twice, 1, "part", NULL, NULL, fresh()), NULL, "part is NULL"));
  CHECK(part == NULL && headrace_comm_is_aborted(comm) == 0);
  const headrace_elements nowhere = {NULL, 4, HEADRACE_INT32};
  CHECK(refused(headrace_comm_tensor_register(comm, NULL, fresh()), NULL, "tensor is NULL"));
  CHECK(refused(headrace_comm_tensor_register(NULL, &nowhere, fresh()), NULL, "comm is NULL"));
  CHECK(refused(headrace_comm_tensor_register(comm, &nowhere, fresh()), NULL, "a null address"));
  CHECK(refused(headrace_comm_tensor_deregister(comm, NULL, fresh()), NULL, "tensor is NULL"));
  CHECK(refused(headrace_comm_suspend(NULL, fresh()), NULL, "comm is NULL"));
  CHECK(refused(headrace_comm_resume(NULL, fresh()), NULL, "comm is NULL"));
  CHECK(headrace_comm_suspend(comm, fresh()) == not_supported);
  CHECK(headrace_comm_resume(comm, fresh()) == not_supported);
  CHECK(headrace_comm_is_suspended(comm) == 0 && headrace_comm_is_suspended(NULL) == 0);
  CHECK(headrace_comm_is_aborted(comm) == 0);
}

static int32_t no_store(void* context, const char* key, headrace_bytes* value) {
  (void)context, (void)key, (void)value;
  return not_found;
}

static void options_of_a_communicator_are_checked(void) {
  headrace_comm* comm = NULL;
  const char* const unknown[] = {"lane_byte", "1MiB", NULL};
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  CHECK(refused(headrace_comm_open(&options, NULL, fresh()), NULL, "comm is NULL"));
  options.rank = 2;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "rank 2 of size 1"));
  CHECK(headrace_comm_open(&options, &comm, NULL) == invalid_argument);
  options.rank = 0;
  options.name = "";
  CHECK(headrace_comm_open(&options, &comm, fresh()) == invalid_argument);
  options.name = NULL;
  options.size = 2;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "need a place to meet"));
  options.hints = unknown;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "lane_bytes"));
  options.hints = NULL;
  headrace_comm_store store = {.struct_size = sizeof store};
  options.store = &store;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "the store's set is NULL"));
  store.get = no_store;
  store.struct_size = 8;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "store: its struct_size"));
  options.struct_size = 8;
  CHECK(refused(headrace_comm_open(&options, &comm, fresh()), NULL, "options: its struct_size"));
  CHECK(comm == NULL);
}

/* A caller that was compiled with a later version. */
static void structs_of_a_later_version_may_be_longer(headrace_comm* comm) {
  struct {
    headrace_op_options known;
    uint64_t later;
  } options = {HEADRACE_OP_OPTIONS_INIT, UINT64_MAX};
  options.known.struct_size = sizeof options;
  CHECK(headrace_comm_barrier(comm, &options.known, NULL, fresh()) == 0);
}

static void null_may_be_freed_and_asked(void) {
  headrace_comm_close(NULL);
  headrace_work_free(NULL);
  headrace_comm_abort(NULL, NULL);
  CHECK(headrace_comm_rank(NULL) == -1 && headrace_comm_size(NULL) == 0 && headrace_comm_ranks(NULL) == NULL);
  CHECK(strcmp(headrace_comm_name(NULL), "") == 0 && strcmp(headrace_comm_backend(NULL), "") == 0);
  CHECK(strcmp(headrace_comm_backend_version(NULL), "") == 0 && headrace_comm_is_aborted(NULL) == 0);
  headrace_bytes* json = NULL;
  CHECK(headrace_comm_get_options(NULL, &json, fresh()) == invalid_argument && json == NULL);
  CHECK(headrace_list_comm_hints(NULL, fresh()) == invalid_argument);
  CHECK(headrace_list_comm_backends(NULL, fresh()) == invalid_argument);
  CHECK(headrace_register_comm_backend(NULL, fresh()) == invalid_argument);
  CHECK(headrace_comm_set_timeout(NULL, 0, fresh()) == invalid_argument);
  CHECK(headrace_comm_finalize(NULL, fresh()) == invalid_argument && strcmp(text(), "comm is NULL") == 0);
  CHECK(headrace_work_status(NULL) == HEADRACE_WORK_NOT_STARTED && headrace_work_is_completed(NULL) == 0);
  CHECK(headrace_work_wait(NULL, 0, fresh()) == invalid_argument && headrace_work_source(NULL) == -1);
  CHECK(headrace_work_error(NULL, fresh()) == invalid_argument);
  CHECK(headrace_bytes_assign(NULL, "x", 1) == invalid_argument);
}

/* ---------------------------------------------------------------- the end of a communicator */

static atomic_int waiting, late_seen, closed;

static void a_late_operation_ends_the_communicator_on_all_ranks(headrace_comm* comm) {
  float data[10] = {0};
  const headrace_elements all = floats(data, 10);
  headrace_op_options soon = HEADRACE_OP_OPTIONS_INIT;
  soon.timeout_ns = 50 * milliseconds;
  if (headrace_comm_rank(comm) == 0) {
    CHECK(headrace_comm_all_reduce(comm, &all, &all, 0, &soon, NULL, fresh()) == timed_out);
    CHECK(strstr(text(), "rank 1 has not come within 50 ms") != NULL);
    atomic_store(&late_seen, 1);
    CHECK(headrace_comm_finalize(comm, fresh()) == timed_out);
  } else {
    wait_for(&late_seen, 1);
    CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == canceled);
    CHECK(strstr(text(), "rank 0, all_reduce") != NULL && headrace_comm_is_aborted(comm) == 1);
  }
}

/* A message that is late ends alone. */
static void a_late_work_says_why_and_a_late_wait_lets_it_go_on(headrace_comm* comm) {
  float data[10] = {0};
  const headrace_elements all = floats(data, 10);
  headrace_message_options message = HEADRACE_MESSAGE_OPTIONS_INIT;
  if (headrace_comm_rank(comm) == 0) {
    headrace_work* work = NULL;
    message.async = 1;
    message.tag = 1;
    CHECK(headrace_comm_recv(comm, &all, 1, &message, &work, fresh()) == 0);
    CHECK(headrace_work_wait(work, milliseconds, fresh()) == timed_out);
    CHECK(strstr(text(), "it still waits for rank 1; it goes on") != NULL);
    CHECK(headrace_work_error(work, fresh()) == 0 && headrace_work_is_completed(work) == 0);
    CHECK(headrace_work_status(work) == HEADRACE_WORK_IN_PROGRESS);
    CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
    CHECK(headrace_work_wait(work, ten_seconds, fresh()) == 0 && headrace_work_source(work) == 1);
    headrace_work_free(work);

    message.timeout_ns = 20 * milliseconds;
    message.tag = 2; /* no rank sends it */
    CHECK(headrace_comm_recv(comm, &all, HEADRACE_ANY_SOURCE, &message, &work, fresh()) == 0);
    CHECK(headrace_work_wait(work, -1, fresh()) == timed_out);
    CHECK(headrace_work_status(work) == HEADRACE_WORK_TIMED_OUT && headrace_work_source(work) == -1);
    CHECK(headrace_work_error(work, fresh()) == timed_out && strstr(text(), "within 20 ms") != NULL);
    headrace_work_free(work);
    message.async = 0;
    CHECK(headrace_comm_recv(comm, &all, 1, &message, &work, fresh()) == timed_out && work == NULL);
  } else {
    CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
    message.tag = 1;
    CHECK(headrace_comm_send(comm, &all, 0, &message, NULL, fresh()) == 0);
  }
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
}

static void* aborts(void* comm) {
  wait_for(&waiting, 3);
  headrace_comm_abort(comm, "a key was pressed");
  return NULL;
}

static void an_abort_from_another_thread_ends_every_wait(headrace_comm* comm) {
  float data[10] = {0};
  const headrace_elements all = floats(data, 10);
  const int me = headrace_comm_rank(comm);
  pthread_t aborter;
  if (me == 2) CHECK(pthread_create(&aborter, NULL, aborts, comm) == 0);
  atomic_fetch_add(&waiting, 1);
  /* Each waits for another one: for a message that no rank sends, or for a rank that does not come. */
  const int32_t code = me == 1 ? headrace_comm_all_reduce(comm, &all, &all, 0, NULL, NULL, fresh())
                               : headrace_comm_recv(comm, &all, 1, NULL, NULL, fresh());
  CHECK(code == canceled && headrace_error_code(last_error) == canceled);
  CHECK(strstr(text(), "rank 2 aborted \"abort\": a key was pressed") != NULL);
  CHECK(headrace_comm_is_aborted(comm) == 1);
  if (me == 2) CHECK(pthread_join(aborter, NULL) == 0);
}

static void an_abort_without_a_reason_has_one(headrace_comm* comm) {
  headrace_comm_abort(comm, NULL);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == canceled);
  CHECK(strstr(text(), "abort was called") != NULL);
}

static void after_finalize_every_operation_is_refused(headrace_comm* comm) {
  float zeros[4] = {0};
  const headrace_elements four = floats(zeros, 4);
  headrace_work* work = NULL;
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  CHECK(headrace_comm_finalize(comm, fresh()) == 0 && headrace_comm_finalize(comm, fresh()) == 0);
  CHECK(headrace_comm_size(comm) == 1 && strcmp(headrace_comm_name(comm), "finalize") == 0);
  for (int number = 0; number < operations; ++number)
    if (number < first_message || number == barrier)
      CHECK(refused(call(number, comm, &four, NULL, NULL, &work), &work, "has been finalized"));
  CHECK(refused(headrace_comm_recv(comm, &four, HEADRACE_ANY_SOURCE, NULL, &work, fresh()), &work,
                "has been finalized"));
  headrace_comm* part = NULL;
  CHECK(refused(headrace_comm_split(comm, NULL, 0, NULL, NULL, &part, fresh()), NULL, "has been finalized"));
}

/* A close aborts what is under way; the works tell so, and are freed afterwards. */
static void* waits_for_a_rank_that_closes(void* argument) {
  const rank_of_run* rank = argument;
  float data[10] = {0};
  const headrace_elements all = floats(data, 10);
  headrace_comm* comm = open_rank("close", rank->rank, 2);
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.async = 1;
  headrace_work* work = NULL;
  if (rank->rank == 0) {
    CHECK(headrace_comm_all_reduce(comm, &all, &all, 0, &options, &work, fresh()) == 0);
    headrace_comm_close(comm);
    CHECK(headrace_work_wait(work, ten_seconds, fresh()) == canceled);
    CHECK(headrace_work_status(work) == HEADRACE_WORK_ABORTED && headrace_work_is_completed(work) == 1);
    CHECK(headrace_work_error(work, fresh()) == canceled);
    headrace_work_free(work);
    atomic_store(&closed, 1);
  } else {
    wait_for(&closed, 1);
    CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == canceled);
    CHECK(strstr(text(), "left while operations were under way") != NULL);
    headrace_comm_close(comm);
  }
  (void)fresh();
  return NULL;
}

static void a_communicator_that_closes_aborts_its_works_which_are_freed_later(void) {
  rank_of_run ranks[2] = {{NULL, 0}, {NULL, 1}};
  on_threads(waits_for_a_rank_that_closes, ranks, sizeof ranks[0], 2);
}

/* ---------------------------------------------------------------- stores of the caller */

enum { most_keys = 16 };

struct store {
  pthread_mutex_t mutex;
  struct {
    char key[200], value[65536];
    uint64_t size;
  } entries[most_keys];
  int count;
};

static int index_of(const struct store* store, const char* key) {
  for (int i = 0; i < store->count; ++i)
    if (strcmp(store->entries[i].key, key) == 0) return i;
  return -1;
}

static int32_t set(void* context, const char* key, const void* value, uint64_t size, headrace_bytes* why) {
  struct store* store = context;
  (void)why;
  pthread_mutex_lock(&store->mutex);
  int at = index_of(store, key);
  if (at < 0) at = store->count++;
  CHECK(at < most_keys && strlen(key) < sizeof store->entries[at].key);
  CHECK(size <= sizeof store->entries[at].value);
  strcpy(store->entries[at].key, key);
  memcpy(store->entries[at].value, value, size);
  store->entries[at].size = size;
  pthread_mutex_unlock(&store->mutex);
  return 0;
}

static int32_t get(void* context, const char* key, headrace_bytes* value) {
  struct store* store = context;
  pthread_mutex_lock(&store->mutex);
  const int at = index_of(store, key);
  const int32_t code =
      at < 0 ? not_found : headrace_bytes_assign(value, store->entries[at].value, store->entries[at].size);
  pthread_mutex_unlock(&store->mutex);
  return code;
}

static struct store shared_store = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void* meets_at_the_store(void* argument) {
  const rank_of_run* rank = argument;
  const headrace_comm_store store = {sizeof store, &shared_store, set, get};
  headrace_comm_options options = rank_options("stored", rank->rank, 2);
  options.meeting = NULL;
  options.store = &store;
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  headrace_comm_close(comm);
  (void)fresh();
  return NULL;
}

static void ranks_meet_at_a_store_of_the_caller(void) {
  rank_of_run ranks[2] = {{NULL, 0}, {NULL, 1}};
  on_threads(meets_at_the_store, ranks, sizeof ranks[0], 2);
  CHECK(shared_store.count > 0);
}

struct failing {
  int32_t code;
  const char* why;
};

static int32_t fails(void* context, const char* key, const void* value, uint64_t size, headrace_bytes* why) {
  const struct failing* failing = context;
  (void)key, (void)value, (void)size;
  if (failing->why != NULL) CHECK(headrace_bytes_assign(why, failing->why, strlen(failing->why)) == 0);
  return failing->code;
}

static void open_at(struct failing* failing, int32_t code, const char* part) {
  const headrace_comm_store store = {sizeof store, failing, fails, no_store};
  headrace_comm_options options = rank_options("failing", 1, 2);
  options.meeting = NULL;
  options.store = &store;
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == code && comm == NULL);
  CHECK(strstr(text(), "the store's set of \"") != NULL && strstr(text(), part) != NULL);
}

static void the_error_of_a_store_has_its_sentence(void) {
  open_at(&(struct failing){exhausted, "the disk is full"}, exhausted, "the disk is full");
  open_at(&(struct failing){exhausted, NULL}, exhausted, "raise the limit");
  open_at(&(struct failing){77, "?"}, invalid_argument, "returned 77, which is no code");
  open_at(&(struct failing){-1, NULL}, invalid_argument, "returned -1, which is no code");
}

/* ---------------------------------------------------------------- abort_on_error */

static void* comes_or_not(void* argument) {
  const rank_of_run* rank = argument;
  headrace_comm_options options = rank_options("ends", rank->rank, 2);
  options.abort_on_error = 1;
  options.timeout_ns = 20 * milliseconds;
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  if (rank->rank == 0) (void)headrace_comm_barrier(comm, NULL, NULL, NULL);
  for (;;) pause(); /* rank 1 does not come */
  return NULL;
}

/* Before this process has threads. */
static void abort_on_error_ends_the_process(void) {
  const pid_t child = fork();
  if (child == 0) {
    rank_of_run ranks[2] = {{NULL, 0}, {NULL, 1}};
    on_threads(comes_or_not, ranks, sizeof ranks[0], 2);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
  abort_on_error_ends_the_process();
  with_ranks("null", 1, every_operation_refuses_null_and_short_structs);
  with_ranks("arguments", 1, arguments_are_checked_before_another_rank_knows);
  with_ranks("settings", 1, settings_are_checked);
  with_ranks("later", 1, structs_of_a_later_version_may_be_longer);
  options_of_a_communicator_are_checked();
  null_may_be_freed_and_asked();
  with_ranks("late", 2, a_late_operation_ends_the_communicator_on_all_ranks);
  with_ranks("works", 2, a_late_work_says_why_and_a_late_wait_lets_it_go_on);
  with_ranks("abort", 3, an_abort_from_another_thread_ends_every_wait);
  with_ranks("reason", 1, an_abort_without_a_reason_has_one);
  with_ranks("finalize", 1, after_finalize_every_operation_is_refused);
  a_communicator_that_closes_aborts_its_works_which_are_freed_later();
  ranks_meet_at_a_store_of_the_caller();
  the_error_of_a_store_has_its_sentence();
  (void)fresh();
  puts("collectives in C refuse what is wrong");
  return 0;
}
