/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads add their elements, then one sends the other a message. Ranks may be processes of several hosts
 * as well: then they meet at "tcp://host:port" of rank 0. docs/collectives.md has more.
 *
 *   gcc -I include examples/all_reduce.c -L build/release/lib -lheadrace -Wl,-rpath,$PWD/build/release/lib
 */
#include <headrace/c/comm.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { count = 1000 };

/* An example ends at its first error. */
static void must(int32_t code, headrace_error* error, const char* what) {
  if (code == 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, headrace_code_name(code), headrace_error_message(error));
  exit(1);
}

static void add(headrace_comm* comm, int rank) {
  headrace_error* error = NULL;
  float data[count];
  for (int i = 0; i < count; ++i) data[i] = (float)(rank + 1);
  const headrace_elements elements = {data, count, HEADRACE_FLOAT32};
  must(headrace_comm_all_reduce(comm, &elements, &elements, HEADRACE_REDUCE_SUM, NULL, NULL, &error), error,
       "all_reduce");
  printf("rank %d: the sum is %g\n", rank, (double)data[count - 1]);
  if (data[0] != 3 || data[count - 1] != 3) exit(1);
}

static void exchange(headrace_comm* comm, int rank) {
  headrace_error* error = NULL;
  int32_t message[3] = {0, 0, 0};
  const headrace_elements elements = {message, 3, HEADRACE_INT32};
  headrace_message_options options = HEADRACE_MESSAGE_OPTIONS_INIT;
  options.tag = 5;
  headrace_work* work = NULL;
  if (rank == 0) {
    options.async = 1; /* the sender goes on at once and waits later */
    for (int i = 0; i < 3; ++i) message[i] = 7;
    must(headrace_comm_send(comm, &elements, 1, &options, &work, &error), error, "send");
    must(headrace_work_wait(work, -1, &error), error, "wait");
  } else {
    must(headrace_comm_recv(comm, &elements, HEADRACE_ANY_SOURCE, &options, &work, &error), error, "recv");
    printf("rank 1: rank %d sends %d\n", headrace_work_source(work), message[2]);
    if (message[0] != 7 || message[2] != 7) exit(1);
  }
  headrace_work_free(work);
}

static void* run_rank(void* number) {
  headrace_error* error = NULL;
  headrace_comm_options options = HEADRACE_COMM_OPTIONS_INIT;
  options.rank = *(const int*)number;
  options.size = 2;
  options.meeting = "memory:example";
  headrace_comm* comm = NULL;
  must(headrace_comm_open(&options, &comm, &error), error, "open");
  add(comm, options.rank);
  exchange(comm, options.rank);
  must(headrace_comm_finalize(comm, &error), error, "finalize");
  headrace_comm_close(comm);
  return NULL;
}

int main(void) {
  static const int numbers[] = {0, 1};
  pthread_t other;
  if (pthread_create(&other, NULL, run_rank, (void*)&numbers[1]) != 0) return 1;
  run_rank((void*)&numbers[0]);
  return pthread_join(other, NULL);
}
