/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the caller that a communicator calls beside its operations, in C.
 * include/headrace/comm_hooks.hpp explains them; include/headrace/c/types.h has the rules.
 */
#ifndef HEADRACE_C_COMM_HOOKS_H
#define HEADRACE_C_COMM_HOOKS_H

#include <headrace/c/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum headrace_comm_operation {
  HEADRACE_OPERATION_OPEN = 0,
  HEADRACE_OPERATION_SPLIT = 1,
  HEADRACE_OPERATION_ALL_REDUCE = 2,
  HEADRACE_OPERATION_BROADCAST = 3,
  HEADRACE_OPERATION_REDUCE = 4,
  HEADRACE_OPERATION_ALL_GATHER = 5,
  HEADRACE_OPERATION_ALL_GATHER_V = 6,
  HEADRACE_OPERATION_ALL_GATHER_SINGLE = 7,
  HEADRACE_OPERATION_REDUCE_SCATTER = 8,
  HEADRACE_OPERATION_REDUCE_SCATTER_V = 9,
  HEADRACE_OPERATION_REDUCE_SCATTER_SINGLE = 10,
  HEADRACE_OPERATION_ALL_TO_ALL = 11,
  HEADRACE_OPERATION_ALL_TO_ALL_SINGLE = 12,
  HEADRACE_OPERATION_ALL_TO_ALL_V_SINGLE = 13,
  HEADRACE_OPERATION_GATHER = 14,
  HEADRACE_OPERATION_GATHER_SINGLE = 15,
  HEADRACE_OPERATION_SCATTER = 16,
  HEADRACE_OPERATION_BARRIER = 17,
  HEADRACE_OPERATION_SEND = 18,
  HEADRACE_OPERATION_RECV = 19,
  HEADRACE_OPERATION_MONITORED_BARRIER = 20,
  HEADRACE_OPERATION_BATCH = 21,
  HEADRACE_OPERATION_COALESCED = 22,
  HEADRACE_OPERATION_REDUCE_SCATTER_QUANTIZED = 23,
  HEADRACE_OPERATION_DEVICE_ALL_TO_ALL_V_SINGLE = 24,
  HEADRACE_OPERATION_SUSPEND = 25,
  HEADRACE_OPERATION_RESUME = 26,
  HEADRACE_OPERATION_TENSOR_REGISTER = 32,
  HEADRACE_OPERATION_TENSOR_DEREGISTER = 33,
  HEADRACE_OPERATION_PUT = 34,
  HEADRACE_OPERATION_GET = 35,
  HEADRACE_OPERATION_SIGNAL = 36,
  HEADRACE_OPERATION_WAIT_SIGNAL = 37,
  HEADRACE_OPERATION_ATOMIC_ADD = 38,
  HEADRACE_OPERATION_FLUSH = 39
} headrace_comm_operation;
/* "all_reduce" for HEADRACE_OPERATION_ALL_REDUCE; "unknown" for none of them. Static text. */
HEADRACE_C_API const char* headrace_comm_operation_name(int32_t operation);

/* One call, with arguments that have been checked. It is there until the function returns; the elements are
 * in place until the operation has ended. */
typedef struct headrace_comm_call {
  size_t struct_size;
  int32_t operation; /* headrace_comm_operation */
  int32_t async;
  uint64_t number; /* of collectives, the same on all ranks; of this rank's messages, of its operations on
                      windows, or of its batches and coalesced calls; 0: none yet */
  const headrace_elements* inputs; /* what it reads, as it was given: lists have an entry for each rank */
  uint64_t input_count;
  const headrace_elements* outputs; /* what it writes */
  uint64_t output_count;
  const uint64_t* input_splits; /* of all_to_all_v_single: elements for each rank */
  const uint64_t* output_splits;
  uint64_t split_count;
  int32_t op;         /* headrace_reduce_op, of reductions */
  int32_t peer;       /* the root, or the other rank of a message or window; -1: none, or
                         HEADRACE_ANY_SOURCE */
  double factor;      /* of HEADRACE_REDUCE_PREMUL_SUM */
  int64_t timeout_ns; /* negative: the communicator's until the call has a number, and no limit then */
  uint32_t tag;       /* of messages */
  uint32_t reserved;
} headrace_comm_call;

/* What a communicator calls. Any of the functions may be NULL. `message` is NULL where `code` is 0; it is
 * there until the function returns.
 *   threads  `before` and `after`: the caller's, which may call the communicator in them. The others: any,
 * and the communicator may hold locks: they are quick and do not call it */
typedef struct headrace_comm_hooks {
  size_t struct_size;
  void* context;
  /* Before an operation. A code of headrace_code_name but 0 refuses the call, which returns it; a sentence
   * may be assigned to `why` by headrace_bytes_assign. No other rank knows of the call. */
  int32_t (*before)(void* context, const headrace_comm_call* call, headrace_bytes* why);
  /* The operation has its number. */
  void (*scheduled)(void* context, const headrace_comm_call* call);
  /* Its turn has come: those before it have ended. */
  void (*started)(void* context, int32_t operation, uint64_t number);
  /* The operation has ended. Its elements may be gone already. */
  void (*completed)(void* context, int32_t operation, uint64_t number, int32_t code, const char* message);
  /* The call returns. */
  void (*after)(void* context, const headrace_comm_call* call, int32_t code, const char* message);
  /* The communicator has ended, by an abort or an operation that failed on some rank. Once. */
  void (*aborted)(void* context, int32_t code, const char* message);
  /* The context is not used any more: the functions are removed, or the communicator is freed, and none of
   * them runs. */
  void (*drop)(void* context);
} headrace_comm_hooks;

typedef struct headrace_hook headrace_hook;

/* Adds the functions until headrace_hook_remove or the communicator's end. `hook` may be NULL: they are not
 * removed before. A communicator that headrace_comm_split makes has none. If the call fails, `drop` is
 * called, too, unless struct_size is wrong. */
HEADRACE_C_API int32_t headrace_comm_add_hooks(headrace_comm* comm, const headrace_comm_hooks* hooks,
                                               headrace_hook** hook, headrace_error** error);
/* Removes the functions and frees the handle; NULL is ignored. No call of them begins after it returns; one
 * that another thread has begun may go on. The communicator may be freed already. */
HEADRACE_C_API void headrace_hook_remove(headrace_hook* hook);
/* Frees the handle. The functions stay. */
HEADRACE_C_API void headrace_hook_free(headrace_hook* hook);

#ifdef __cplusplus
}
#endif
#endif
