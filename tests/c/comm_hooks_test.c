/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the caller that a communicator calls beside its operations. */
#include "ranks.h"

#include <headrace/c/comm_hooks.h>

#include <stdint.h>

/* What the functions have been told. */
typedef struct diary {
  char events[64]; /* a letter an event */
  headrace_comm_call call;
  headrace_elements input;
  uint64_t number;
  int32_t code;
  int32_t refused_operation;
  char message[256];
  int dropped;
} diary;

static void note(diary* told, char event) {
  const size_t length = strlen(told->events);
  if (length + 1 < sizeof told->events) told->events[length] = event;
}
static void note_end(diary* told, char event, int32_t code, const char* message) {
  note(told, event);
  CHECK((code == 0) == (message == NULL));
  told->code = code;
  if (message != NULL) strncpy(told->message, message, sizeof told->message - 1);
}

static int32_t before(void* context, const headrace_comm_call* call, headrace_bytes* why) {
  diary* told = context;
  note(told, 'b');
  told->call = *call;
  if (call->input_count > 0) told->input = call->inputs[0];
  if (call->operation != told->refused_operation) return 0;
  CHECK(headrace_bytes_assign(why, "not today", 9) == 0);
  return exhausted;
}
static void scheduled(void* context, const headrace_comm_call* call) {
  diary* told = context;
  note(told, 's');
  told->call = *call;
}
static void started(void* context, int32_t operation, uint64_t number) {
  diary* told = context;
  note(told, 't');
  CHECK(operation == told->call.operation && number == told->call.number);
}
static void completed(void* context, int32_t operation, uint64_t number, int32_t code, const char* message) {
  diary* told = context;
  CHECK(operation == told->call.operation);
  told->number = number;
  note_end(told, 'c', code, message);
}
static void after(void* context, const headrace_comm_call* call, int32_t code, const char* message) {
  diary* told = context;
  CHECK(call->number == told->number);
  note_end(told, 'a', code, message);
}
static void aborted(void* context, int32_t code, const char* message) {
  diary* told = context;
  note_end(told, 'x', code, message);
}
static void drop(void* context) { ++((diary*)context)->dropped; }

static headrace_comm_hooks hooks_of(diary* told) {
  return (headrace_comm_hooks){.struct_size = sizeof(headrace_comm_hooks),
                               .context = told,
                               .before = before,
                               .scheduled = scheduled,
                               .started = started,
                               .completed = completed,
                               .after = after,
                               .aborted = aborted,
                               .drop = drop};
}

static void hear_of_each_step_until_they_are_removed(headrace_comm* comm) {
  diary told = {.refused_operation = -1};
  const headrace_comm_hooks hooks = hooks_of(&told);
  headrace_hook* hook = NULL;
  CHECK(headrace_comm_add_hooks(comm, &hooks, &hook, fresh()) == 0 && hook != NULL);
  float data[3] = {1, 2, 3};
  const headrace_elements three = {data, 3, HEADRACE_FLOAT32};
  headrace_op_options options = HEADRACE_OP_OPTIONS_INIT;
  options.timeout_ns = ten_seconds;
  CHECK(headrace_comm_all_reduce(comm, &three, &three, HEADRACE_REDUCE_MAX, &options, NULL, fresh()) == 0);
  CHECK(strcmp(told.events, "bstca") == 0);
  CHECK(told.call.struct_size == sizeof told.call && told.call.operation == HEADRACE_OPERATION_ALL_REDUCE);
  CHECK(told.call.number == 2 && told.number == 2 && told.call.op == HEADRACE_REDUCE_MAX);
  CHECK(told.call.timeout_ns == ten_seconds && told.call.peer == -1 && told.call.output_count == 1);
  CHECK(told.input.data == data && told.input.count == 3 && told.input.dtype == HEADRACE_FLOAT32);
  CHECK(told.dropped == 0);
  headrace_hook_remove(hook);
  CHECK(told.dropped == 1);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
  CHECK(strcmp(told.events, "bstca") == 0);
}

static void before_refuses_a_call_and_the_communicator_goes_on(headrace_comm* comm) {
  diary told = {.refused_operation = HEADRACE_OPERATION_BARRIER};
  const headrace_comm_hooks hooks = hooks_of(&told);
  headrace_hook* hook = NULL;
  CHECK(headrace_comm_add_hooks(comm, &hooks, &hook, fresh()) == 0);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == exhausted);
  CHECK(strstr(text(), "not today") != NULL);
  CHECK(strcmp(told.events, "b") == 0);
  headrace_hook_remove(hook);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == 0);
}

static void hear_of_the_end_and_stay_without_a_handle(void) {
  diary told = {.refused_operation = -1};
  const headrace_comm_hooks hooks = hooks_of(&told);
  headrace_comm* comm = open_rank("c-hooks-end", 0, 1);
  headrace_hook* hook = NULL;
  CHECK(headrace_comm_add_hooks(comm, &hooks, &hook, fresh()) == 0);
  headrace_hook_free(hook);
  headrace_comm_abort(comm, "enough");
  CHECK(strcmp(told.events, "x") == 0 && told.code == canceled && strstr(told.message, "enough") != NULL);
  CHECK(headrace_comm_barrier(comm, NULL, NULL, fresh()) == canceled);
  CHECK(strcmp(told.events, "xbstca") == 0 && told.code == canceled);
  CHECK(told.dropped == 0);
  headrace_comm_close(comm);
  CHECK(told.dropped == 1);
}

static void a_context_without_functions_is_dropped_with_its_hooks(void) {
  diary told = {0};
  headrace_comm_hooks hooks = {.struct_size = sizeof hooks, .context = &told, .drop = drop};
  headrace_comm* comm = open_rank("c-hooks-none", 0, 1);
  headrace_hook* hook = NULL;
  CHECK(headrace_comm_add_hooks(comm, &hooks, NULL, fresh()) == 0);
  CHECK(headrace_comm_add_hooks(comm, &hooks, &hook, fresh()) == 0);
  CHECK(told.dropped == 0);
  headrace_comm_close(comm);
  CHECK(told.dropped == 2);
  headrace_hook_remove(hook); /* after its communicator */
}

static void wrong_arguments_are_refused(void) {
  diary told = {0};
  headrace_comm_hooks hooks = hooks_of(&told);
  headrace_comm* comm = open_rank("c-hooks-wrong", 0, 1);
  headrace_hook* hook = (headrace_hook*)&told; /* becomes NULL */
  CHECK(headrace_comm_add_hooks(NULL, &hooks, &hook, fresh()) == invalid_argument && hook == NULL);
  CHECK(strstr(text(), "comm is NULL") != NULL);
  CHECK(told.dropped == 1);
  CHECK(headrace_comm_add_hooks(comm, NULL, &hook, fresh()) == invalid_argument);
  CHECK(strstr(text(), "hooks is NULL") != NULL);
  hooks.struct_size = 8;
  CHECK(headrace_comm_add_hooks(comm, &hooks, &hook, fresh()) == invalid_argument);
  CHECK(strstr(text(), "hooks: its struct_size") != NULL);
  CHECK(told.dropped == 1);
  headrace_hook_remove(NULL);
  headrace_comm_close(comm);
}

int main(void) {
  CHECK(strcmp(headrace_comm_operation_name(HEADRACE_OPERATION_ALL_REDUCE), "all_reduce") == 0);
  CHECK(strcmp(headrace_comm_operation_name(-1), "unknown") == 0);
  with_ranks("c-hooks-steps", 2, hear_of_each_step_until_they_are_removed);
  with_ranks("c-hooks-refuse", 2, before_refuses_a_call_and_the_communicator_goes_on);
  hear_of_the_end_and_stay_without_a_handle();
  a_context_without_functions_is_dropped_with_its_hooks();
  wrong_arguments_are_refused();
  (void)fresh();
  return 0;
}
