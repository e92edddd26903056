/* SPDX-License-Identifier: Apache-2.0 */
/* The C API of collectives, compiled as C: every operation against plain loops, works, and what a
 * communicator tells. */
#include "allocations.h"
#include "ranks.h"

enum { size = 3, most = 4096 };

/* Element i of a rank: sums and products of three fit into every type. */
static int32_t value(int rank, uint64_t i) { return (int32_t)((uint64_t)rank * 5 + i) % 7; }

static headrace_elements numbers(int32_t* data, uint64_t count) {
  return (headrace_elements){data, count, HEADRACE_INT32};
}
/* The same, with the values of a rank. */
static headrace_elements values(int32_t* data, uint64_t count, int rank) {
  for (uint64_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return numbers(data, count);
}

static int32_t sum(uint64_t i) {
  int32_t all = 0;
  for (int rank = 0; rank < size; ++rank) all += value(rank, i);
  return all;
}
static int32_t largest(uint64_t i) {
  int32_t found = value(0, i);
  for (int rank = 1; rank < size; ++rank) found = value(rank, i) > found ? value(rank, i) : found;
  return found;
}

static int has_values(const int32_t* data, uint64_t count, int rank) {
  for (uint64_t i = 0; i < count; ++i)
    if (data[i] != value(rank, i)) return 0;
  return 1;
}

/* Sizes below and above those at which the algorithm changes. */
static const uint64_t counts[] = {0, 1, 7, 1000, most};

/* ---------------------------------------------------------------- all ranks give, all receive */

static int32_t reduced(int32_t op, uint64_t i) {
  int32_t result = value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const int32_t next = value(rank, i);
    switch (op) {
      case HEADRACE_REDUCE_PRODUCT:
        result *= next;
        break;
      case HEADRACE_REDUCE_MIN:
        result = next < result ? next : result;
        break;
      case HEADRACE_REDUCE_MAX:
        result = next > result ? next : result;
        break;
      case HEADRACE_REDUCE_BAND:
        result &= next;
        break;
      case HEADRACE_REDUCE_BOR:
        result |= next;
        break;
      case HEADRACE_REDUCE_BXOR:
        result ^= next;
        break;
      default:
        result += next;
    }
  }
  return op == HEADRACE_REDUCE_AVG ? result / size : op == HEADRACE_REDUCE_PREMUL_SUM ? 3 * result : result;
}

static void all_reduce_knows_every_operation_in_both_algorithms(headrace_comm* comm) {
  static const char* const hints[2][3] = {{"algorithm", "one_shot", NULL}, {"algorithm", "two_shot", NULL}};
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.factor = 3;
  int32_t data[most], results[most];
  for (int algorithm = 0; algorithm < 2; ++algorithm) {
    options.hints = hints[algorithm];
    for (int32_t op = HEADRACE_REDUCE_SUM; op <= HEADRACE_REDUCE_PREMUL_SUM; ++op) {
      const headrace_elements input = values(data, most, headrace_comm_rank(comm));
      const headrace_elements output = numbers(results, most);
      CHECK(headrace_comm_all_reduce(comm, &input, &output, op, &options, NULL, fresh()) == 0);
      for (uint64_t i = 0; i < most; ++i) CHECK(results[i] == reduced(op, i));
      CHECK(has_values(data, most, headrace_comm_rank(comm)));
    }
  }
}

static void all_reduce_works_in_place_and_on_every_type(headrace_comm* comm) {
  static const int32_t dtypes[] = {HEADRACE_FLOAT32, HEADRACE_FLOAT64};
  for (int which = 0; which < 2; ++which) {
    float singles[7];
    double doubles[7];
    for (uint64_t i = 0; i < 7; ++i) doubles[i] = singles[i] = (float)value(headrace_comm_rank(comm), i);
    const headrace_elements all = {which == 0 ? (void*)singles : doubles, 7, dtypes[which]};
    CHECK(headrace_comm_all_reduce(comm, &all, &all, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0);
    for (uint64_t i = 0; i < 7; ++i) CHECK((which == 0 ? singles[i] : doubles[i]) == sum(i));
  }
  for (int32_t dtype = HEADRACE_FLOAT32; dtype <= HEADRACE_FLOAT8_E5M2; ++dtype) {
    double zeros[8] = {0};
    const headrace_elements all = {zeros, 4, dtype};
    CHECK(headrace_comm_all_reduce(comm, &all, &all, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0);
  }
}

static void gathers_put_the_inputs_of_all_ranks_where_they_belong(headrace_comm* comm) {
  const int me = headrace_comm_rank(comm);
  int32_t mine[most], row[size * most];
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c) {
    const uint64_t n = counts[c];
    const headrace_elements input = values(mine, n, me), all = numbers(row, size * n);
    headrace_elements parts[size];
    for (int rank = 0; rank < size; ++rank) parts[rank] = numbers(row + rank * n, n);

    memset(row, -1, sizeof row);
    CHECK(headrace_comm_all_gather(comm, parts, size, &input, NULL, NULL, fresh()) == 0);
    for (int rank = 0; rank < size; ++rank) CHECK(has_values(row + rank * n, n, rank));
    memset(row, -1, sizeof row);
    CHECK(headrace_comm_all_gather_single(comm, &all, &input, NULL, NULL, fresh()) == 0);
    for (int rank = 0; rank < size; ++rank) CHECK(has_values(row + rank * n, n, rank));

    for (int root = 0; root < size; ++root) {
      const int is_root = me == root;
      memset(row, -1, sizeof row);
      CHECK(headrace_comm_gather(comm, is_root ? parts : NULL, is_root ? size : 0, &input, root, NULL, NULL,
                                 fresh()) == 0);
      for (int rank = 0; is_root && rank < size; ++rank) CHECK(has_values(row + rank * n, n, rank));
      memset(row, -1, sizeof row);
      CHECK(headrace_comm_gather_single(comm, is_root ? &all : NULL, &input, root, NULL, NULL, fresh()) == 0);
      for (int rank = 0; is_root && rank < size; ++rank) CHECK(has_values(row + rank * n, n, rank));
    }
  }
}

/* Rank a gives rank b so many elements. */
static uint64_t share(int a, int b) { return (uint64_t)(a * 3 + b) * 113 % 1000; }

static void operations_with_counts_that_differ_move_each_its_own(headrace_comm* comm) {
  const int me = headrace_comm_rank(comm);
  int32_t in[size * 1000], out[size * 1000];
  headrace_elements inputs[size], outputs[size];
  uint64_t given[size], got[size], first_in = 0, first_out = 0;
  for (int rank = 0; rank < size; ++rank) {
    given[rank] = share(me, rank);
    got[rank] = share(rank, me);
    inputs[rank] = values(in + first_in, given[rank], me);
    outputs[rank] = numbers(out + first_out, got[rank]);
    first_in += given[rank];
    first_out += got[rank];
  }
  const headrace_elements input = numbers(in, first_in), output = numbers(out, first_out);
  for (int single = 0; single < 2; ++single) {
    memset(out, -1, sizeof out);
    CHECK((single ? headrace_comm_all_to_all_v_single(comm, &output, &input, got, given, size, NULL, NULL,
                                                      fresh())
                  : headrace_comm_all_to_all(comm, outputs, size, inputs, size, NULL, NULL, fresh())) == 0);
    for (int rank = 0; rank < size; ++rank) CHECK(has_values(outputs[rank].data, got[rank], rank));
  }
  int64_t get[size], give[size];
  for (int rank = 0; rank < size; ++rank) get[rank] = (int64_t)got[rank], give[rank] = (int64_t)given[rank];
  const headrace_elements to = {get, size, HEADRACE_INT64}, from = {give, size, HEADRACE_INT64};
  memset(out, -1, sizeof out);
  CHECK(headrace_comm_device_all_to_all_v_single(comm, &output, &input, &to, &from, NULL, NULL, fresh()) ==
        0);
  for (int rank = 0; rank < size; ++rank) CHECK(has_values(outputs[rank].data, got[rank], rank));

  /* Rank r has as many as it gives rank 0. */
  for (int rank = 0; rank < size; ++rank) outputs[rank] = numbers(out + (size_t)rank * 1000, share(rank, 0));
  CHECK(headrace_comm_all_gather_v(comm, outputs, size, &inputs[0], NULL, NULL, fresh()) == 0);
  for (int rank = 0; rank < size; ++rank) CHECK(has_values(outputs[rank].data, outputs[rank].count, rank));
  for (int rank = 0; rank < size; ++rank) inputs[rank] = values(in + (size_t)rank * 1000, share(rank, 0), me);
  CHECK(headrace_comm_reduce_scatter_v(comm, &outputs[me], inputs, size, HEADRACE_REDUCE_SUM, NULL, NULL,
                                       fresh()) == 0);
  for (uint64_t i = 0; i < outputs[me].count; ++i) CHECK(((int32_t*)outputs[me].data)[i] == sum(i));
}

static void operations_with_equal_parts_exchange_and_reduce_them(headrace_comm* comm) {
  const uint64_t me = (uint64_t)headrace_comm_rank(comm), n = 1000;
  int32_t in[size * 1000], out[size * 1000];
  const headrace_elements input = values(in, size * n, (int)me), output = numbers(out, size * n);
  const headrace_elements part = numbers(out, n);
  CHECK(headrace_comm_all_to_all_single(comm, &output, &input, NULL, NULL, fresh()) == 0);
  for (uint64_t rank = 0; rank < size; ++rank)
    for (uint64_t i = 0; i < n; ++i) CHECK(out[rank * n + i] == value((int)rank, me * n + i));

  CHECK(headrace_comm_reduce_scatter_single(comm, &part, &input, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) ==
        0);
  for (uint64_t i = 0; i < n; ++i) CHECK(out[i] == sum(me * n + i));
  headrace_elements inputs[size];
  for (uint64_t rank = 0; rank < size; ++rank) inputs[rank] = numbers(in + rank * n, n);
  CHECK(headrace_comm_reduce_scatter(comm, &part, inputs, size, HEADRACE_REDUCE_MAX, NULL, NULL, fresh()) ==
        0);
  for (uint64_t i = 0; i < n; ++i) CHECK(out[i] == largest(me * n + i));
}

/* ---------------------------------------------------------------- one gives, or one receives */

static void roots_give_and_receive(headrace_comm* comm) {
  const int me = headrace_comm_rank(comm);
  int32_t data[most], row[size * most];
  for (int root = 0; root < size; ++root) {
    headrace_elements all = values(data, most, me);
    CHECK(headrace_comm_broadcast(comm, &all, root, NULL, NULL, fresh()) == 0);
    CHECK(has_values(data, most, root));
    all = values(data, most, me);
    CHECK(headrace_comm_reduce(comm, &all, root, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0);
    for (uint64_t i = 0; i < most; ++i) CHECK(data[i] == (me == root ? sum(i) : value(me, i)));

    headrace_elements inputs[size];
    for (int rank = 0; rank < size; ++rank) inputs[rank] = values(row + (size_t)rank * most, most, rank);
    memset(data, -1, sizeof data);
    CHECK(headrace_comm_scatter(comm, &all, me == root ? inputs : NULL, me == root ? size : 0, root, NULL,
                                NULL, fresh()) == 0);
    CHECK(has_values(data, most, me));
  }
}

static atomic_int came;

static void a_barrier_returns_once_all_ranks_have_come(headrace_comm* comm) {
  atomic_fetch_add(&came, 1);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  CHECK(atomic_load(&came) == size);
}

/* ---------------------------------------------------------------- messages and works */

static void messages_go_by_tag_and_tell_their_source(headrace_comm* comm) {
  headrace_message_options options = HEADRACE_MESSAGE_OPTIONS_INIT;
  int32_t data[100];
  headrace_work* work = NULL;
  if (headrace_comm_rank(comm) == 1) {
    for (uint32_t tag = 1; tag <= 2; ++tag) {
      const headrace_elements input = values(data, 100, (int)tag);
      options.tag = tag;
      CHECK(headrace_comm_send(comm, &input, 0, &options, NULL, fresh()) == 0);
    }
  } else if (headrace_comm_rank(comm) == 0) {
    const headrace_elements output = numbers(data, 100);
    options.tag = 2;
    CHECK(headrace_comm_recv(comm, &output, HEADRACE_ANY_SOURCE, &options, &work, fresh()) == 0);
    CHECK(has_values(data, 100, 2) && headrace_work_source(work) == 1);
    CHECK(headrace_work_status(work) == HEADRACE_WORK_COMPLETED);
    headrace_work_free(work);
    options.tag = 1;
    CHECK(headrace_comm_recv(comm, &output, 1, &options, NULL, fresh()) == 0 && has_values(data, 100, 1));
  }
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
}

static void asynchronous_operations_end_in_order_of_call(headrace_comm* comm) {
  const int me = headrace_comm_rank(comm);
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.async = 1;
  static _Thread_local int32_t added[most], told[most];
  const headrace_elements sums = values(added, most, me), roots = values(told, most, me);
  headrace_work *first = NULL, *second = NULL;
  CHECK(headrace_comm_all_reduce(comm, &sums, &sums, HEADRACE_REDUCE_SUM, &options, &first, fresh()) == 0);
  CHECK(headrace_comm_broadcast(comm, &roots, 2, &options, &second, fresh()) == 0);
  CHECK(headrace_work_wait(second, -1, fresh()) == 0);
  CHECK(headrace_work_is_completed(first) == 1 && headrace_work_wait(first, 0, fresh()) == 0);
  CHECK(headrace_work_error(first, fresh()) == 0 && headrace_work_source(first) == -1);
  for (uint64_t i = 0; i < most; ++i) CHECK(added[i] == sum(i));
  CHECK(has_values(told, most, 2));
  headrace_work_free(first);
  headrace_work_free(second);

  headrace_message_options message = HEADRACE_MESSAGE_OPTIONS_INIT;
  message.async = 1;
  if (me == 0) {
    const headrace_elements output = numbers(told, 10);
    CHECK(headrace_comm_recv(comm, &output, 1, &message, &first, fresh()) == 0);
    while (!headrace_work_is_completed(first)) usleep(100);
    CHECK(headrace_work_source(first) == 1 && has_values(told, 10, 1));
    headrace_work_free(first);
  } else if (me == 1) { /* no work is asked for: the operation goes on without one */
    const headrace_elements input = values(added, 10, 1);
    CHECK(headrace_comm_send(comm, &input, 0, &message, NULL, fresh()) == 0);
  }
  CHECK(headrace_comm_barrier(comm, &options, NULL, fresh()) == 0);
  CHECK(headrace_comm_barrier(comm, NULL, &first, fresh()) == 0);
  CHECK(headrace_work_status(first) == HEADRACE_WORK_COMPLETED);
  headrace_work_free(first);
}

static void an_operation_without_a_work_allocates_nothing(headrace_comm* comm) {
  int32_t data[100];
  const headrace_elements all = values(data, 100, headrace_comm_rank(comm));
  const headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  headrace_error* error = NULL;
  allocations = 0;
  CHECK(headrace_comm_all_reduce(comm, &all, &all, HEADRACE_REDUCE_MAX, &options, NULL, &error) == 0);
  CHECK(headrace_comm_broadcast(comm, &all, 0, NULL, NULL, NULL) == 0);
  CHECK(allocations == 0);
  headrace_work* work = NULL;
  CHECK(headrace_comm_broadcast(comm, &all, 0, NULL, &work, &error) == 0);
  CHECK(!allocations_count || allocations == 1);
  headrace_work_free(work);
}

/* ---------------------------------------------------------------- what a communicator tells */

static void a_batch_moves_to_and_from_all_ranks_and_is_issued_once(headrace_comm* comm) {
  const int32_t rank = headrace_comm_rank(comm);
  int32_t mine[100], got[size][100];
  const headrace_elements input = values(mine, 100, rank);
  headrace_batch* batch = NULL;
  CHECK(headrace_comm_batch(comm, &batch, fresh()) == 0);
  for (int32_t other = 0; other < size; ++other) {
    if (other == rank) continue;
    const headrace_elements output = numbers(got[other], 100);
    CHECK(headrace_batch_send(batch, &input, other, 4, fresh()) == 0);
    CHECK(headrace_batch_recv(batch, &output, other, 4, fresh()) == 0);
  }
  CHECK(headrace_batch_send(batch, &input, size, 4, fresh()) == invalid_argument);
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.async = 1;
  headrace_work* work = NULL;
  CHECK(headrace_batch_issue(batch, &options, &work, fresh()) == 0);
  CHECK(headrace_work_wait(work, ten_seconds, fresh()) == 0);
  for (int32_t other = 0; other < size; ++other) CHECK(other == rank || has_values(got[other], 100, other));
  CHECK(headrace_batch_issue(batch, NULL, NULL, fresh()) == invalid_argument);
  headrace_work_free(work);
  headrace_batch_free(batch);
}

static void coalesced_calls_end_as_one_or_are_forgotten(headrace_comm* comm) {
  int32_t a[10], b[10];
  const headrace_elements first = values(a, 10, headrace_comm_rank(comm));
  const headrace_elements second = values(b, 10, headrace_comm_rank(comm));
  headrace_work *one = NULL, *all = NULL;
  CHECK(headrace_comm_start_coalescing(comm, fresh()) == 0);
  CHECK(headrace_comm_start_coalescing(comm, fresh()) == invalid_argument);
  CHECK(headrace_comm_all_reduce(comm, &first, &first, HEADRACE_REDUCE_SUM, NULL, &one, fresh()) == 0);
  CHECK(headrace_comm_broadcast(comm, &second, 1, NULL, NULL, fresh()) == 0);
  CHECK(headrace_work_status(one) == HEADRACE_WORK_NOT_STARTED);
  CHECK(headrace_comm_end_coalescing(comm, 0, &all, fresh()) == 0);
  CHECK(headrace_work_is_completed(one) && headrace_work_is_completed(all));
  CHECK(a[3] == sum(3) && has_values(b, 10, 1));
  headrace_work_free(one);
  headrace_work_free(all);
  CHECK(headrace_comm_end_coalescing(comm, 0, NULL, fresh()) == invalid_argument);

  CHECK(headrace_comm_start_coalescing(comm, fresh()) == 0);
  CHECK(headrace_comm_all_reduce(comm, &first, &first, HEADRACE_REDUCE_SUM, NULL, &one, fresh()) == 0);
  CHECK(headrace_comm_cancel_coalescing(comm, NULL, fresh()) == 0);
  CHECK(headrace_work_wait(one, ten_seconds, fresh()) == canceled && a[3] == sum(3));
  headrace_work_free(one);
}

static void a_persistent_gather_checks_its_output_once(headrace_comm* comm) {
  int32_t mine[5], all[size * 5];
  const headrace_elements output = numbers(all, size * 5);
  headrace_all_gather* handle = NULL;
  CHECK(headrace_comm_all_gather_p_init(comm, &output, &handle, fresh()) == 0);
  const headrace_elements input = values(mine, 5, headrace_comm_rank(comm)), shorter = numbers(mine, 4);
  CHECK(headrace_comm_all_gather_p_exec(comm, handle, &shorter, NULL, NULL, fresh()) == invalid_argument);
  CHECK(headrace_comm_all_gather_p_exec(comm, handle, &input, NULL, NULL, fresh()) == 0);
  for (int rank = 0; rank < size; ++rank) CHECK(has_values(all + rank * 5, 5, rank));
  headrace_all_gather_free(handle);
}

static void a_quantized_reduction_is_near_the_sum(headrace_comm* comm) {
  float input[size * 4], output[4];
  for (int i = 0; i < size * 4; ++i) input[i] = 1.001f;
  const headrace_elements from = {input, size * 4, HEADRACE_FLOAT32}, to = {output, 4, HEADRACE_FLOAT32};
  CHECK(headrace_comm_reduce_scatter_quantized(comm, &to, &from, HEADRACE_REDUCE_SUM, 1, NULL, NULL,
                                               fresh()) == 0);
  for (int i = 0; i < 4; ++i) CHECK(output[i] > size * 1.0f && output[i] < size * 1.0079f);
  CHECK(headrace_comm_reduce_scatter_quantized(comm, &to, &from, HEADRACE_REDUCE_MAX, 1, NULL, NULL,
                                               fresh()) == invalid_argument);
}

static void a_registered_tensor_is_used_and_taken_back(headrace_comm* comm) {
  int32_t data[5];
  const headrace_elements all = values(data, 5, headrace_comm_rank(comm)), shorter = numbers(data, 4);
  CHECK(headrace_comm_tensor_register(comm, &all, fresh()) == 0);
  CHECK(headrace_comm_tensor_register(comm, &all, fresh()) == invalid_argument);
  CHECK(headrace_comm_all_reduce(comm, &all, &all, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0);
  for (uint64_t i = 0; i < 5; ++i) CHECK(data[i] == sum(i));
  CHECK(headrace_comm_tensor_deregister(comm, &shorter, fresh()) == invalid_argument);
  CHECK(headrace_comm_tensor_deregister(comm, &all, fresh()) == 0);
  CHECK(headrace_comm_tensor_deregister(comm, &all, fresh()) == invalid_argument);
}

static void a_monitored_barrier_lets_all_pass(headrace_comm* comm) {
  CHECK(headrace_comm_monitored_barrier(comm, ten_seconds, 0, fresh()) == 0);
  CHECK(headrace_comm_monitored_barrier(comm, -1, 1, fresh()) == 0);
}

static void a_communicator_tells_its_values(headrace_comm* comm) {
  CHECK(headrace_comm_size(comm) == size && headrace_comm_is_aborted(comm) == 0);
  for (int rank = 0; rank < size; ++rank) CHECK(headrace_comm_ranks(comm)[rank] == rank);
  CHECK(strcmp(headrace_comm_name(comm), "values") == 0 && strcmp(headrace_comm_backend(comm), "host") == 0);
  CHECK(strchr(headrace_comm_backend_version(comm), '.') != NULL);

  headrace_bytes* json = NULL;
  const char* const hints[] = {"one_shot_bytes", "1KiB", "block_bytes", "64KiB", NULL};
  CHECK(headrace_comm_set_timeout(comm, 5 * ten_seconds, fresh()) == 0);
  CHECK(headrace_comm_set_hints(comm, hints, fresh()) == 0);
  CHECK(headrace_comm_get_options(comm, &json, fresh()) == 0);
  const char* const parts[] = {
      "\"size\":3,\"name\":\"values\",\"meeting\":\"memory:c-tests\"",
      "\"meeting_timeout_ns\":120000000000,\"timeout_ns\":50000000000", "\"abort_on_error\":false",
      "{\"backends\":\"shm\",\"block_bytes\":\"64KiB\",\"one_shot_bytes\":\"1KiB\"}"};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i)
    CHECK(strstr(headrace_bytes_data(json), parts[i]) != NULL);
  headrace_bytes_free(json);
  CHECK(headrace_comm_set_timeout(comm, -1, fresh()) == 0);
  CHECK(headrace_comm_get_options(comm, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"timeout_ns\":null") != NULL);
  headrace_bytes_free(json);
  CHECK(headrace_list_comm_hints(&json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "{\"name\":\"lane_bytes\",\"default\":\"1MiB\"") != NULL);
  headrace_bytes_free(json);
}

static void names_of_operations_and_statuses_are_those_of_the_header(void) {
  CHECK(strcmp(headrace_reduce_op_name(HEADRACE_REDUCE_SUM), "sum") == 0);
  CHECK(strcmp(headrace_reduce_op_name(HEADRACE_REDUCE_BXOR), "bxor") == 0);
  CHECK(strcmp(headrace_reduce_op_name(HEADRACE_REDUCE_PREMUL_SUM), "premul_sum") == 0);
  CHECK(strcmp(headrace_reduce_op_name(9), "unknown") == 0);
  CHECK(strcmp(headrace_reduce_op_name(-1), "unknown") == 0);
  CHECK(strcmp(headrace_work_status_name(HEADRACE_WORK_NOT_STARTED), "not_started") == 0);
  CHECK(strcmp(headrace_work_status_name(HEADRACE_WORK_FAILED), "failed") == 0);
  CHECK(strcmp(headrace_work_status_name(6), "unknown") == 0);
}

/* Ranks 2 and 0 make one, in this order; rank 1 gets none. */
static void a_split_has_its_ranks_in_the_given_order(headrace_comm* comm) {
  static const int32_t group[] = {2, 0};
  const int me = headrace_comm_rank(comm);
  headrace_comm* part = comm;
  if (me == 1) {
    CHECK(headrace_comm_split(comm, NULL, 0, NULL, NULL, &part, fresh()) == 0 && part == NULL);
    return;
  }
  static const char* const hints[] = {"one_shot_bytes", "0", NULL};
  headrace_split_options options = HEADRACE_SPLIT_OPTIONS_INIT;
  options.hints = hints;
  options.timeout_ns = 7000000000;
  CHECK(headrace_comm_split(comm, group, 2, "half", &options, &part, fresh()) == 0);
  headrace_bytes* values = NULL;
  CHECK(headrace_comm_get_options(part, &values, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(values), "\"timeout_ns\":7000000000") != NULL);
  CHECK(strstr(headrace_bytes_data(values), "\"one_shot_bytes\":\"0\"") != NULL);
  headrace_bytes_free(values);
  CHECK(headrace_comm_size(part) == 2 && headrace_comm_rank(part) == (me == 2 ? 0 : 1));
  CHECK(headrace_comm_ranks(part)[0] == 2 && headrace_comm_ranks(part)[1] == 0);
  CHECK(strcmp(headrace_comm_name(part), "half") == 0);
  int32_t data = me;
  const headrace_elements one = numbers(&data, 1);
  CHECK(headrace_comm_broadcast(part, &one, 0, NULL, NULL, fresh()) == 0 && data == 2);
  headrace_comm_close(part);
}

static atomic_int opened;

/* Rank 1 goes. The others go on, and then become one alone each, by handles. */
static void ranks_that_are_left_go_on_and_find_each_other_by_handles(headrace_comm* comm) {
  static const int32_t gone[] = {1};
  headrace_comm *left = NULL, *again = NULL;
  atomic_fetch_add(&opened, 1);
  wait_for(&opened, size); /* shrink ends a communicator that rank 1 is opening */
  CHECK(headrace_comm_shrink(comm, NULL, 1, NULL, &left, fresh()) == invalid_argument);
  if (headrace_comm_rank(comm) == 1) return;
  headrace_split_options options = HEADRACE_SPLIT_OPTIONS_INIT;
  options.meeting_timeout_ns = ten_seconds;
  CHECK(headrace_comm_shrink(comm, gone, 1, &options, &left, fresh()) == 0);
  CHECK(headrace_comm_size(left) == 2 && headrace_comm_ranks(left)[1] == 2);

  headrace_bytes* mine = NULL;
  CHECK(headrace_comm_init_handle(left, &mine, fresh()) == 0);
  const void* handle = headrace_bytes_data(mine);
  uint64_t bytes = headrace_bytes_size(mine);
  CHECK(headrace_comm_reconfigure(left, "alone", &handle, &bytes, 1, NULL, &again, fresh()) == 0);
  CHECK(headrace_comm_size(again) == 1);
  bytes = 1;
  headrace_comm* none = NULL;
  CHECK(headrace_comm_reconfigure(left, "x", &handle, &bytes, 1, NULL, &none, fresh()) == invalid_argument);
  CHECK(strstr(text(), "handle 0 is none") != NULL && none == NULL);
  headrace_bytes_free(mine);

  int32_t data = 1;
  const headrace_elements one = numbers(&data, 1);
  CHECK(headrace_comm_all_reduce(left, &one, &one, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0 &&
        data == 2);
  headrace_comm_close(again);
  headrace_comm_close(left);
}

static void one_rank_needs_no_options(void) {
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(NULL, &comm, fresh()) == 0);
  CHECK(headrace_comm_rank(comm) == 0 && headrace_comm_size(comm) == 1);
  CHECK(strcmp(headrace_comm_name(comm), "world") == 0);
  int32_t data = 3, result = 0;
  const headrace_elements input = numbers(&data, 1), output = numbers(&result, 1);
  CHECK(headrace_comm_all_reduce(comm, &input, &output, HEADRACE_REDUCE_SUM, NULL, NULL, fresh()) == 0);
  CHECK(result == 3 && headrace_comm_finalize(comm, fresh()) == 0);
  headrace_comm_close(comm);
}

static void the_backend_is_the_one_that_was_named(void) {
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.rank = 1, options.size = 3, options.backend = "fake";
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  CHECK(strcmp(headrace_comm_backend(comm), "fake") == 0);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  headrace_comm_close(comm);
  options.backend = "fakes";
  CHECK(headrace_comm_open(&options, &comm, fresh()) != 0);
  CHECK(strstr(text(), "did you mean fake?") != NULL);
  headrace_bytes* names = NULL;
  CHECK(headrace_list_comm_backends(&names, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(names), "\"host\"") != NULL);
  headrace_bytes_free(names);
}

/* A backend in C: one rank alone, on which every operation leaves what is there. */
static int32_t own_open(void* context, const headrace_comm_setup_v1* setup, void** own,
                        headrace_text_v1* why) {
  (void)why;
  *own = context;
  return setup->size == 1 ? HEADRACE_OK : HEADRACE_NOT_SUPPORTED;
}
static void own_close(void* own) { *(int*)own += 100; }
static int32_t own_issue(void* own, const headrace_comm_call_v1* call, uint64_t work, headrace_text_v1* why) {
  (void)work, (void)why;
  *(int*)own += call->operation == HEADRACE_COMM_BARRIER;
  return HEADRACE_COMM_DONE;
}
static void own_abort(void* own, const char* reason, size_t length) { (void)own, (void)reason, (void)length; }

static void a_program_brings_its_own_backend(void) {
  static int calls = 0;
  headrace_comm_backend_v1 table = {.struct_size = sizeof table,
                                    .abi_major = HEADRACE_COMM_ABI_MAJOR,
                                    .abi_minor = HEADRACE_COMM_ABI_MINOR,
                                    .name = "own",
                                    .version = "1",
                                    .devices = HEADRACE_COMM_MOVES_HOST_MEMORY,
                                    .context = &calls,
                                    .open = own_open,
                                    .close = own_close,
                                    .issue = own_issue,
                                    .abort = own_abort};
  CHECK(headrace_register_comm_backend(&table, fresh()) == 0);
  CHECK(headrace_register_comm_backend(&table, fresh()) != 0);
  CHECK(strstr(text(), "under another name") != NULL);
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.backend = "own";
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  CHECK(strcmp(headrace_comm_backend_version(comm), "1") == 0);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0 && calls == 1);
  headrace_comm_close(comm);
  CHECK(calls == 101);
  table.abi_major = 9;
  CHECK(headrace_register_comm_backend(&table, fresh()) != 0);
  CHECK(strstr(text(), "version 9.2") != NULL);
}

static void a_communicator_on_a_gpu_takes_streams(void) {
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.device = "cuda:1";
  headrace_comm* comm = NULL;
  CHECK(headrace_comm_open(&options, &comm, fresh()) != 0);
  CHECK(strstr(text(), "backend host does not move memory of cuda:1") != NULL);
  options.backend = "fake";
  CHECK(headrace_comm_open(&options, &comm, fresh()) == 0);
  headrace_bytes* json = NULL;
  CHECK(headrace_comm_get_options(comm, &json, fresh()) == 0);
  CHECK(strstr(headrace_bytes_data(json), "\"device\":\"cuda:1\"") != NULL);
  headrace_bytes_free(json);
  char stream = 0; /* the backend does not use it */
  headrace_op_options how = HEADRACE_OP_OPTIONS_INIT;
  how.stream = &stream;
  headrace_work* work = NULL;
  CHECK(headrace_comm_barrier(comm, &how, &work, fresh()) == 0);
  CHECK(headrace_work_wait_on(work, &stream, fresh()) == 0);
  headrace_work_free(work);
  headrace_comm_close(comm);
  CHECK(headrace_comm_open(NULL, &comm, fresh()) == 0);
  CHECK(headrace_comm_barrier(comm, &how, NULL, fresh()) != 0);
  CHECK(strstr(text(), "a stream is given") != NULL);
  headrace_comm_close(comm);
}

static void rank_size_and_meeting_come_from_the_environment(void) {
  static const char* const variables[] = {"HEADRACE_RANK", "HEADRACE_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  headrace_bytes* place = NULL;
  CHECK(headrace_comm_options_from_environment(&options, &place, fresh()) != 0);
  CHECK(strstr(text(), "OMPI_COMM_WORLD_RANK") != NULL);
  setenv(variables[0], "1", 1);
  setenv(variables[1], "2", 1);
  setenv(variables[2], "10.0.0.1", 1);
  setenv(variables[3], "29500", 1);
  CHECK(headrace_comm_options_from_environment(&options, &place, fresh()) == 0);
  CHECK(options.rank == 1 && options.size == 2 && strcmp(options.meeting, "tcp://10.0.0.1:29500") == 0);
  headrace_bytes_free(place);
  for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) unsetenv(variables[i]);
}

int main(void) {
  count_allocations();
  with_ranks("reduce", size, all_reduce_knows_every_operation_in_both_algorithms);
  with_ranks("types", size, all_reduce_works_in_place_and_on_every_type);
  with_ranks("gather", size, gathers_put_the_inputs_of_all_ranks_where_they_belong);
  with_ranks("counts", size, operations_with_counts_that_differ_move_each_its_own);
  with_ranks("parts", size, operations_with_equal_parts_exchange_and_reduce_them);
  with_ranks("roots", size, roots_give_and_receive);
  with_ranks("barrier", size, a_barrier_returns_once_all_ranks_have_come);
  with_ranks("messages", size, messages_go_by_tag_and_tell_their_source);
  with_ranks("works", size, asynchronous_operations_end_in_order_of_call);
  with_ranks("allocations", size, an_operation_without_a_work_allocates_nothing);
  with_ranks("batch", size, a_batch_moves_to_and_from_all_ranks_and_is_issued_once);
  with_ranks("coalesced", size, coalesced_calls_end_as_one_or_are_forgotten);
  with_ranks("persistent", size, a_persistent_gather_checks_its_output_once);
  with_ranks("quantized", size, a_quantized_reduction_is_near_the_sum);
  with_ranks("registered", size, a_registered_tensor_is_used_and_taken_back);
  with_ranks("monitored", size, a_monitored_barrier_lets_all_pass);
  with_ranks("values", size, a_communicator_tells_its_values);
  with_ranks("split", size, a_split_has_its_ranks_in_the_given_order);
  with_ranks("left", size, ranks_that_are_left_go_on_and_find_each_other_by_handles);
  names_of_operations_and_statuses_are_those_of_the_header();
  one_rank_needs_no_options();
  the_backend_is_the_one_that_was_named();
  a_program_brings_its_own_backend();
  a_communicator_on_a_gpu_takes_streams();
  rank_size_and_meeting_come_from_the_environment();
  (void)fresh();
  puts("collectives in C do what they say");
  return 0;
}
