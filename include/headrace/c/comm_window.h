/* SPDX-License-Identifier: Apache-2.0
 *
 * Windows in C: elements of every rank that the other ranks read and write by themselves.
 * include/headrace/comm_window.hpp explains each call, the order of operations and their errors;
 * include/headrace/c/types.h has the rules.
 *
 * Threads: any. At one time one thread registers or deregisters, in the order of the other ranks'
 * collectives. An error of an operation ends that operation alone.
 */
#ifndef HEADRACE_C_COMM_WINDOW_H
#define HEADRACE_C_COMM_WINDOW_H

#include <headrace/c/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct headrace_window headrace_window;

/* Makes a window without memory. All ranks make their windows in the same order. It may be freed after its
 * communicator. Free with headrace_window_free. not_supported: the backend has none. */
HEADRACE_C_API int32_t headrace_comm_new_window(headrace_comm* comm, headrace_window** window,
                                                headrace_error** error);
/* Withdraws the memory without the other ranks: those that still use it get not_found. Ends what is
 * asynchronous, with canceled. */
HEADRACE_C_API void headrace_window_free(headrace_window* window);

/* ------------------------------------------------------------------ memory */

/* Makes elements of the caller those of this rank. All ranks call this or headrace_window_allocate, as a
 * collective: types are the same on all ranks, counts may differ. The elements stay in place until
 * headrace_window_tensor_deregister has returned. */
HEADRACE_C_API int32_t headrace_window_tensor_register(headrace_window* window,
                                                       const headrace_elements* tensor,
                                                       headrace_error** error);
/* The same with new memory, which holds zeros and belongs to the window. Ranks of this host map it. `tensor`
 * may be NULL. dtype: headrace_dtype_v1. */
HEADRACE_C_API int32_t headrace_window_allocate(headrace_window* window, uint64_t count, int32_t dtype,
                                                headrace_elements* tensor, headrace_error** error);
/* Takes the elements back. All ranks call it, as a collective. Returns when no rank uses the memory any more.
 * timed_out: a rank that stands still may use it yet. */
HEADRACE_C_API int32_t headrace_window_tensor_deregister(headrace_window* window, headrace_error** error);
/* The elements of this rank. invalid_argument: none are registered. */
HEADRACE_C_API int32_t headrace_window_tensor(const headrace_window* window, headrace_elements* tensor,
                                              headrace_error** error);

/* How a rank reaches the elements of another one. */
typedef enum headrace_window_access {
  HEADRACE_WINDOW_UNIFIED = 0, /* its memory is mapped here: headrace_window_map_remote_tensor */
  HEADRACE_WINDOW_SEPARATE = 1 /* by requests: it is on another host, or has registered memory of its own */
} headrace_window_access;
/* "unified" for HEADRACE_WINDOW_UNIFIED; "unknown" for none of them. Static text. */
HEADRACE_C_API const char* headrace_window_access_name(int32_t access);

typedef struct headrace_window_attr {
  size_t struct_size;
  int32_t access; /* headrace_window_access */
  int32_t reserved;
  uint64_t count; /* elements of that rank */
} headrace_window_attr;
HEADRACE_C_API int32_t headrace_window_get_attr(const headrace_window* window, int32_t peer_rank,
                                                headrace_window_attr* attr, headrace_error** error);

/* Keeps the elements of a rank mapped. */
typedef struct headrace_remote_tensor headrace_remote_tensor;
/* The elements of a rank as memory of this process, until `owner` is freed by headrace_remote_tensor_free,
 * which may be after the window. Once the window is deregistered, other ranks no longer see what is written
 * there. not_supported: access to the rank is separate. */
HEADRACE_C_API int32_t headrace_window_map_remote_tensor(headrace_window* window, int32_t rank,
                                                         headrace_elements* elements,
                                                         headrace_remote_tensor** owner,
                                                         headrace_error** error);
HEADRACE_C_API void headrace_remote_tensor_free(headrace_remote_tensor* owner);

/* ------------------------------------------------------------------ operations */

typedef struct headrace_window_options {
  size_t struct_size;
  int32_t async; /* return at once; asynchronous operations of a window run one after another */
  int32_t reserved;
  int64_t timeout_ns; /* from the call on; negative: the communicator's */
  void* stream;       /* as in headrace_op_options */
} headrace_window_options;
#define HEADRACE_WINDOW_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_window_options), .timeout_ns = -1 }

/* In all operations
 *   options     may be NULL: the call waits, for as long as the communicator's timeout
 *   timeout_ns  negative: the communicator's timeout
 *   work        as in comm.h: may be NULL */

/* Writes elements to those of a rank, from its element `target_offset_nelems` on. */
HEADRACE_C_API int32_t headrace_window_put(headrace_window* window, const headrace_elements* tensor,
                                           int32_t dst_rank, uint64_t target_offset_nelems,
                                           const headrace_window_options* options, headrace_work** work,
                                           headrace_error** error);
/* Reads elements of a rank, from its element `source_offset_nelems` on. */
HEADRACE_C_API int32_t headrace_window_get(headrace_window* window, const headrace_elements* tensor,
                                           int32_t src_rank, uint64_t source_offset_nelems,
                                           const headrace_window_options* options, headrace_work** work,
                                           headrace_error** error);

/* What a signal does to the word that its sender has at the receiver. */
typedef enum headrace_signal_kind { HEADRACE_SIGNAL_ADD = 0, HEADRACE_SIGNAL_SET = 1 } headrace_signal_kind;
/* Changes the word that this rank has at `peer_rank`. It begins at 0. kind: headrace_signal_kind. */
HEADRACE_C_API int32_t headrace_window_signal(headrace_window* window, int32_t peer_rank, int32_t kind,
                                              uint64_t value, const headrace_window_options* options,
                                              headrace_work** work, headrace_error** error);
/* Waits until the word that `peer_rank` has here is above 0, and takes 1 from it. *before becomes its value
 * before that; may be NULL. */
HEADRACE_C_API int32_t headrace_window_wait_signal(headrace_window* window, int32_t peer_rank,
                                                   int64_t timeout_ns, uint64_t* before,
                                                   headrace_error** error);

typedef enum headrace_comparison {
  HEADRACE_COMPARE_EQ = 0,
  HEADRACE_COMPARE_NE = 1,
  HEADRACE_COMPARE_LT = 2,
  HEADRACE_COMPARE_LE = 3,
  HEADRACE_COMPARE_GT = 4,
  HEADRACE_COMPARE_GE = 5
} headrace_comparison;
/* Waits until that word, unsigned, compares so with the value, and leaves it. *seen becomes the word; may be
 * NULL. comparison: headrace_comparison. */
HEADRACE_C_API int32_t headrace_window_wait_signal_until(headrace_window* window, int32_t peer_rank,
                                                         int32_t comparison, uint64_t value,
                                                         int64_t timeout_ns, uint64_t* seen,
                                                         headrace_error** error);
/* Adds to one element of a rank (int32, uint32, int64, uint64), in one step for all ranks. *before becomes
 * its value before that, a uint64 with the same bits; may be NULL. */
HEADRACE_C_API int32_t headrace_window_atomic_add(headrace_window* window, int32_t dst_rank,
                                                  uint64_t target_offset_nelems, int64_t value,
                                                  int64_t timeout_ns, int64_t* before,
                                                  headrace_error** error);
/* Waits until all asynchronous operations that have begun on this rank have ended. Each work has its own
 * error. */
HEADRACE_C_API int32_t headrace_window_flush(headrace_window* window, int64_t timeout_ns,
                                             headrace_error** error);

#ifdef __cplusplus
}
#endif
#endif
