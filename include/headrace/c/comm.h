/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API of collectives: operations in which every rank of a communicator takes part, and messages from
 * rank to rank. include/headrace/comm.hpp explains each call; this header is its form in C.
 * include/headrace/c/types.h has the rules, docs/collectives.md the errors.
 *
 * Threads: every function may be called from any thread, several at once, on any handle, except a `_free` or
 * headrace_comm_close beside another call with the same handle. Every rank calls the same operations in the
 * same order. A forked child opens its own communicators, and calls nothing with those of its parent.
 *
 * Order of freeing: any. A work may be freed after its communicator.
 */
#ifndef HEADRACE_C_COMM_H
#define HEADRACE_C_COMM_H

#include <headrace/c/types.h>
#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/dtype_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct headrace_comm headrace_comm;
typedef struct headrace_work headrace_work;

/* ------------------------------------------------------------------ communicators */

/* The place where the ranks find each other, given by the caller. Each function returns 0 or a code of
 * headrace_code_name; for a failure it may assign a sentence to `why`, or to `value`, by
 * headrace_bytes_assign.
 *   threads  called during headrace_comm_open alone, on its thread */
typedef struct headrace_comm_store {
  size_t struct_size;
  void* context;
  /* Sets a key; a later call replaces its value. The value may have zeros. */
  int32_t (*set)(void* context, const char* key, const void* value, uint64_t size, headrace_bytes* why);
  /* Assigns the value of a key. not_found: it has none yet. */
  int32_t (*get)(void* context, const char* key, headrace_bytes* value);
} headrace_comm_store;

typedef struct headrace_comm_options {
  size_t struct_size;
  int32_t rank;                     /* of this participant: 0 to size - 1 */
  int32_t size;                     /* number of ranks */
  const char* name;                 /* the same on all ranks: 1 to 128 bytes; NULL: "world" */
  const char* meeting;              /* "tcp://host:port" of rank 0, "file:///folder", "memory:NAME",
                                       "etcd://host:port"; NULL: `store`, or one rank alone */
  const headrace_comm_store* store; /* instead of `meeting`; may be NULL */
  int64_t meeting_timeout_ns;       /* until all ranks have come */
  int64_t timeout_ns;               /* of each operation, unless it has its own */
  const char* const* hints;         /* name, value, name, value, ..., NULL; or NULL */
  int32_t abort_on_error;           /* ends the process when an operation fails, or is late */
  int32_t enable_reconfigure; /* ranks of other hosts may join it by headrace_comm_reconfigure, though its
                                 meeting is of this host alone, or it has one rank */
  const char* backend;        /* what moves the elements, the same on all ranks; NULL: "host" */
  const char* device; /* where the elements of every call lie: "cpu", "cuda:1", or "cuda": the current GPU of
                         this thread; NULL: "cpu" */
} headrace_comm_options;

/* Fills rank, size and meeting from the environment that a launcher has set: torchrun's, Open MPI's, PALS's,
 * PMI's, Slurm's, or HEADRACE_RANK and HEADRACE_SIZE, with MASTER_ADDR and MASTER_PORT. `meeting` is NULL if
 * there is none. *place owns its text: free it with headrace_bytes_free after headrace_comm_open. not_found:
 * no launcher has set rank and size. */
HEADRACE_C_API int32_t headrace_comm_options_from_environment(headrace_comm_options* options,
                                                              headrace_bytes** place, headrace_error** error);

/* Meets the other ranks and connects to each. `options` may be NULL: one rank alone. Free with
 * headrace_comm_close. */
HEADRACE_C_API int32_t headrace_comm_open(const headrace_comm_options* options, headrace_comm** comm,
                                          headrace_error** error);
/* Leaves, and frees the handle. Operations that are under way are aborted on all ranks. */
HEADRACE_C_API void headrace_comm_close(headrace_comm* comm);

HEADRACE_C_API int32_t headrace_comm_rank(const headrace_comm* comm);
HEADRACE_C_API int32_t headrace_comm_size(const headrace_comm* comm);
/* The ranks of this communicator as those of the one that was opened first: headrace_comm_size numbers. They
 * belong to the communicator. */
HEADRACE_C_API const int32_t* headrace_comm_ranks(const headrace_comm* comm);
HEADRACE_C_API const char* headrace_comm_name(const headrace_comm* comm);
/* The name of the backend, and its version. They belong to the communicator. */
HEADRACE_C_API const char* headrace_comm_backend(const headrace_comm* comm);
HEADRACE_C_API const char* headrace_comm_backend_version(const headrace_comm* comm);
/* The options with the values that were set since, as a JSON object: rank, size, name, meeting,
 * meeting_timeout_ns and timeout_ns (null: none), abort_on_error, backend, device, hints (those that were
 * given).
 * Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_comm_get_options(const headrace_comm* comm, headrace_bytes** json,
                                                 headrace_error** error);
/* Makes a backend known to headrace_comm_open by the name of its table. The table is copied; its texts and
 * functions stay to the end of the process. invalid_argument: the name is taken; not_supported: what is wrong
 * with the table. */
HEADRACE_C_API int32_t headrace_register_comm_backend(const headrace_comm_backend_v1* table,
                                                      headrace_error** error);
/* The names of the backends: a JSON array of texts. Needs no communicator. */
HEADRACE_C_API int32_t headrace_list_comm_backends(headrace_bytes** json, headrace_error** error);
/* Every hint of "host": a JSON array of objects: name, default, unit, sentence. Needs no communicator. */
HEADRACE_C_API int32_t headrace_list_comm_hints(headrace_bytes** json, headrace_error** error);

/* For operations that begin later. */
HEADRACE_C_API int32_t headrace_comm_set_timeout(headrace_comm* comm, int64_t timeout_ns,
                                                 headrace_error** error);
/* Changes hints for operations that begin later, on every rank alike: name, value, ..., NULL. */
HEADRACE_C_API int32_t headrace_comm_set_hints(headrace_comm* comm, const char* const* hints,
                                               headrace_error** error);

/* What is new in a communicator that headrace_comm_split, _reconfigure or _shrink makes. */
typedef struct headrace_split_options {
  size_t struct_size;
  const char* const* hints;   /* name, value, ..., NULL: instead of the parent's; or NULL */
  int64_t timeout_ns;         /* of each operation; negative: the parent's */
  int64_t meeting_timeout_ns; /* until all ranks have come; negative: the parent's */
} headrace_split_options;

/* Makes a communicator of some ranks, in the given order. All ranks of this one call it. Each gives the group
 * that it belongs to, or no ranks: then *part is NULL, and `name` is not read. `options` may be NULL. Free
 * with headrace_comm_close. */
HEADRACE_C_API int32_t headrace_comm_split(headrace_comm* comm, const int32_t* ranks, uint64_t rank_count,
                                           const char* name, const headrace_split_options* options,
                                           headrace_comm** part, headrace_error** error);

/* This rank as headrace_comm_reconfigure takes it: bytes, for the caller to bring to all ranks. Over nccl,
 * and over tables, they serve one reconfigure. Free with headrace_bytes_free. */
HEADRACE_C_API int32_t headrace_comm_init_handle(const headrace_comm* comm, headrace_bytes** handle,
                                                 headrace_error** error);
/* Makes a communicator of the ranks behind these handles, in this order: handles[i] has handle_bytes[i]
 * bytes. Each of them calls it with the same uuid and handles, on the communicator that its handle is of: one
 * of several ranks, or of itself alone, as newcomers have. That one stays as it is. After a failure all ranks
 * call it again, with another uuid. `options` may be NULL. Free with headrace_comm_close. */
HEADRACE_C_API int32_t headrace_comm_reconfigure(headrace_comm* comm, const char* uuid,
                                                 const void* const* handles, const uint64_t* handle_bytes,
                                                 uint64_t handle_count, const headrace_split_options* options,
                                                 headrace_comm** made, headrace_error** error);
/* Makes a communicator of all ranks but some, which died or are to go. All that stay call it with the same
 * ranks. This communicator is aborted if it has not ended. The others keep their order; headrace_comm_ranks
 * tells what they were. `options` may be NULL. Free with headrace_comm_close. */
HEADRACE_C_API int32_t headrace_comm_shrink(headrace_comm* comm, const int32_t* excluded,
                                            uint64_t excluded_count, const headrace_split_options* options,
                                            headrace_comm** left, headrace_error** error);

/* Ends every operation on all ranks: they return canceled, with this rank and the reason. `reason` may be
 * NULL. */
HEADRACE_C_API void headrace_comm_abort(headrace_comm* comm, const char* reason);
/* Whether the communicator has ended: by abort, or by an operation that failed on some rank. */
HEADRACE_C_API int32_t headrace_comm_is_aborted(const headrace_comm* comm);
/* Waits for queued operations, leaves and keeps the handle; later operations return invalid_argument. */
HEADRACE_C_API int32_t headrace_comm_finalize(headrace_comm* comm, headrace_error** error);

/* ------------------------------------------------------------------ operations */

/* Contiguous elements of the caller. An operation reads its inputs and writes its outputs; both stay the
 * caller's, in place, until it has ended. Frozen. */
typedef struct headrace_elements {
  void* data; /* may be NULL if there are none */
  uint64_t count;
  int32_t dtype; /* headrace_dtype_v1 */
} headrace_elements;

typedef enum headrace_reduce_op {
  HEADRACE_REDUCE_SUM = 0,
  HEADRACE_REDUCE_PRODUCT = 1,
  HEADRACE_REDUCE_MIN = 2,
  HEADRACE_REDUCE_MAX = 3,
  HEADRACE_REDUCE_AVG = 4, /* the sum divided by the number of ranks */
  HEADRACE_REDUCE_BAND = 5,
  HEADRACE_REDUCE_BOR = 6,
  HEADRACE_REDUCE_BXOR = 7,
  HEADRACE_REDUCE_PREMUL_SUM = 8 /* the sum of each rank's elements times `factor` */
} headrace_reduce_op;
/* "sum" for HEADRACE_REDUCE_SUM; "unknown" for none of them. Static text. */
HEADRACE_C_API const char* headrace_reduce_op_name(int32_t op);

typedef struct headrace_op_options {
  size_t struct_size;
  int32_t async; /* return at once; headrace_work_wait waits */
  int32_t reserved;
  int64_t timeout_ns;       /* from the call on; negative: the communicator's */
  double factor;            /* of HEADRACE_REDUCE_PREMUL_SUM, the same on every rank; else not read */
  const char* const* hints; /* "algorithm", "one_shot" or "two_shot", NULL; or NULL */
  void* stream; /* of a communicator on a GPU: a CUstream; NULL: the default stream. The operation sees what
                   was queued on it before. Without `async`, later work of it sees the result, and the call
                   does not wait; with it, headrace_work_wait_on joins them */
} headrace_op_options;

/* In all operations
 *   op       headrace_reduce_op
 *   options  may be NULL: the call waits, for as long as the communicator's timeout. On a GPU no call waits
 *   work     NULL: the caller wants none. Else *work becomes a work, to be freed with headrace_work_free, or
 *            NULL if the call fails */

/* Every rank gets the reduction of all ranks' elements, bit for bit the same. Input and output have the same
 * count and type, and may be the same memory. */
HEADRACE_C_API int32_t headrace_comm_all_reduce(headrace_comm* comm, const headrace_elements* input,
                                                const headrace_elements* output, int32_t op,
                                                const headrace_op_options* options, headrace_work** work,
                                                headrace_error** error);
/* outputs[r] gets the input of rank r: as many outputs as ranks, each of the input's count. */
HEADRACE_C_API int32_t headrace_comm_all_gather(headrace_comm* comm, const headrace_elements* outputs,
                                                uint64_t output_count, const headrace_elements* input,
                                                const headrace_op_options* options, headrace_work** work,
                                                headrace_error** error);
/* The same with counts that differ: outputs[r] has the count of rank r's input. */
HEADRACE_C_API int32_t headrace_comm_all_gather_v(headrace_comm* comm, const headrace_elements* outputs,
                                                  uint64_t output_count, const headrace_elements* input,
                                                  const headrace_op_options* options, headrace_work** work,
                                                  headrace_error** error);
/* The inputs of all ranks in a row: the output has size times the input's count. */
HEADRACE_C_API int32_t headrace_comm_all_gather_single(headrace_comm* comm, const headrace_elements* output,
                                                       const headrace_elements* input,
                                                       const headrace_op_options* options,
                                                       headrace_work** work, headrace_error** error);
/* Rank r gets the reduction of all ranks' inputs[r]: as many inputs as ranks, each of the output's count. */
HEADRACE_C_API int32_t headrace_comm_reduce_scatter(headrace_comm* comm, const headrace_elements* output,
                                                    const headrace_elements* inputs, uint64_t input_count,
                                                    int32_t op, const headrace_op_options* options,
                                                    headrace_work** work, headrace_error** error);
/* The same with counts that differ: inputs[r] has the count of rank r's output. */
HEADRACE_C_API int32_t headrace_comm_reduce_scatter_v(headrace_comm* comm, const headrace_elements* output,
                                                      const headrace_elements* inputs, uint64_t input_count,
                                                      int32_t op, const headrace_op_options* options,
                                                      headrace_work** work, headrace_error** error);
/* The same with the inputs in a row: the input has size times the output's count. */
HEADRACE_C_API int32_t headrace_comm_reduce_scatter_single(headrace_comm* comm,
                                                           const headrace_elements* output,
                                                           const headrace_elements* input, int32_t op,
                                                           const headrace_op_options* options,
                                                           headrace_work** work, headrace_error** error);
/* outputs[r] gets inputs[this rank] of rank r: as many of each as ranks. inputs[r] of this rank has the count
 * of outputs[this rank] of rank r. */
HEADRACE_C_API int32_t headrace_comm_all_to_all(headrace_comm* comm, const headrace_elements* outputs,
                                                uint64_t output_count, const headrace_elements* inputs,
                                                uint64_t input_count, const headrace_op_options* options,
                                                headrace_work** work, headrace_error** error);
/* The same with the parts in a row, all of one count. */
HEADRACE_C_API int32_t headrace_comm_all_to_all_single(headrace_comm* comm, const headrace_elements* output,
                                                       const headrace_elements* input,
                                                       const headrace_op_options* options,
                                                       headrace_work** work, headrace_error** error);
/* The same with counts for each rank, in elements: `split_count` of each is the number of ranks, and their
 * sums are the counts of output and input. */
HEADRACE_C_API int32_t headrace_comm_all_to_all_v_single(headrace_comm* comm, const headrace_elements* output,
                                                         const headrace_elements* input,
                                                         const uint64_t* output_splits,
                                                         const uint64_t* input_splits, uint64_t split_count,
                                                         const headrace_op_options* options,
                                                         headrace_work** work, headrace_error** error);
/* The same with splits that lie in elements, int64 and as many as ranks, and are read when the operation
 * begins on this rank, in memory of the communicator's device. Their sums are at most the counts of output
 * and input. Splits that do not fit end the communicator with invalid_argument; nothing is written. */
HEADRACE_C_API int32_t headrace_comm_device_all_to_all_v_single(
    headrace_comm* comm, const headrace_elements* output, const headrace_elements* input,
    const headrace_elements* output_splits, const headrace_elements* input_splits,
    const headrace_op_options* options, headrace_work** work, headrace_error** error);
/* Returns once every rank has called it. */
HEADRACE_C_API int32_t headrace_comm_barrier(headrace_comm* comm, const headrace_op_options* options,
                                             headrace_work** work, headrace_error** error);

/* The same, to find out which ranks do not come: rank 0 names each that is late or gone, and the others hear
 * it from rank 0. timeout_ns: negative: the communicator's. wait_all_ranks: 1: a rank that is gone does not
 * end the wait for the others, so that all are named. */
HEADRACE_C_API int32_t headrace_comm_monitored_barrier(headrace_comm* comm, int64_t timeout_ns,
                                                       int32_t wait_all_ranks, headrace_error** error);

/* reduce_scatter_single of float32, with sum or avg, that sends bfloat16, rounded up or down by chance, so
 * that the mean of the error is 0. Sums are float32. The same seed on all ranks gives the same elements. */
HEADRACE_C_API int32_t headrace_comm_reduce_scatter_quantized(
    headrace_comm* comm, const headrace_elements* output, const headrace_elements* input, int32_t op,
    uint64_t seed, const headrace_op_options* options, headrace_work** work, headrace_error** error);

/* The output of an all_gather that is checked once. Frees with headrace_all_gather_free; the output stays in
 * place until then. */
typedef struct headrace_all_gather headrace_all_gather;
/* The output has as many elements for each rank, in a row. No other rank takes part. */
HEADRACE_C_API int32_t headrace_comm_all_gather_p_init(headrace_comm* comm, const headrace_elements* output,
                                                       headrace_all_gather** handle, headrace_error** error);
/* headrace_comm_all_gather_single into the output of the handle, which is of this communicator. */
HEADRACE_C_API int32_t headrace_comm_all_gather_p_exec(headrace_comm* comm, const headrace_all_gather* handle,
                                                       const headrace_elements* input,
                                                       const headrace_op_options* options,
                                                       headrace_work** work, headrace_error** error);
/* Frees the handle. Operations that are under way go on. */
HEADRACE_C_API void headrace_all_gather_free(headrace_all_gather* handle);

/* Every rank gets the root's elements. */
HEADRACE_C_API int32_t headrace_comm_broadcast(headrace_comm* comm, const headrace_elements* inout,
                                               int32_t root, const headrace_op_options* options,
                                               headrace_work** work, headrace_error** error);
/* The root gets the reduction of all ranks' elements; those of other ranks stay as they are. */
HEADRACE_C_API int32_t headrace_comm_reduce(headrace_comm* comm, const headrace_elements* inout, int32_t root,
                                            int32_t op, const headrace_op_options* options,
                                            headrace_work** work, headrace_error** error);
/* outputs[r] of the root gets the input of rank r. The root has as many outputs as ranks, others have none.
 */
HEADRACE_C_API int32_t headrace_comm_gather(headrace_comm* comm, const headrace_elements* outputs,
                                            uint64_t output_count, const headrace_elements* input,
                                            int32_t root, const headrace_op_options* options,
                                            headrace_work** work, headrace_error** error);
/* The inputs of all ranks in a row at the root. Elsewhere the output is not read and may be NULL. */
HEADRACE_C_API int32_t headrace_comm_gather_single(headrace_comm* comm, const headrace_elements* output,
                                                   const headrace_elements* input, int32_t root,
                                                   const headrace_op_options* options, headrace_work** work,
                                                   headrace_error** error);
/* Rank r gets inputs[r] of the root. The root has as many inputs as ranks, others have none. */
HEADRACE_C_API int32_t headrace_comm_scatter(headrace_comm* comm, const headrace_elements* output,
                                             const headrace_elements* inputs, uint64_t input_count,
                                             int32_t root, const headrace_op_options* options,
                                             headrace_work** work, headrace_error** error);

/* ------------------------------------------------------------------ memory that calls use again and again */

/* Tells the backend that calls will use this memory again and again. It changes speed alone: calls whose
 * elements lie in registered memory may go without a copy, calls with other memory work as before. All ranks
 * call it, as a collective, each with a tensor of its own; counts may differ. It waits for the collectives of
 * this rank that are under way. The memory stays in place until headrace_comm_tensor_deregister has returned
 * 0 or the communicator has ended (finalize, close, abort). */
HEADRACE_C_API int32_t headrace_comm_tensor_register(headrace_comm* comm, const headrace_elements* tensor,
                                                     headrace_error** error);
/* Takes it back: afterwards no rank uses the memory. All ranks call it, as a collective. `tensor` has the
 * address, count and type with which it was registered. Messages and replays of graphs that use the memory
 * have ended before, and none of these graphs is replayed later. */
HEADRACE_C_API int32_t headrace_comm_tensor_deregister(headrace_comm* comm, const headrace_elements* tensor,
                                                       headrace_error** error);

/* ------------------------------------------------------------------ a communicator that sleeps */

/* Gives back memory of the GPU that the backend can do without while no call runs. All ranks call it, as a
 * collective. It waits for the collectives of this rank that are under way. Until headrace_comm_resume every
 * call returns invalid_argument, and no graph with calls is replayed. A rank that does not come ends the
 * communicator. not_supported: the backend, or this version of its library, gives nothing back. */
HEADRACE_C_API int32_t headrace_comm_suspend(headrace_comm* comm, headrace_error** error);
/* Takes the memory again. All ranks call it, as a collective. */
HEADRACE_C_API int32_t headrace_comm_resume(headrace_comm* comm, headrace_error** error);
/* Whether it is suspended. */
HEADRACE_C_API int32_t headrace_comm_is_suspended(const headrace_comm* comm);

/* ------------------------------------------------------------------ messages, beside the operations */

typedef struct headrace_message_options {
  size_t struct_size;
  int32_t async;
  uint32_t tag;       /* a receive takes messages of its own tag alone */
  int64_t timeout_ns; /* from the call on; negative: the communicator's */
  void* stream;       /* as in headrace_op_options */
} headrace_message_options;

/* As the source: the first message with the tag, from any rank. */
#define HEADRACE_ANY_SOURCE (-1)

/* Sends a message. Done when the elements may be changed; the receiver may not have them yet. `options` and
 * `work` as above. */
HEADRACE_C_API int32_t headrace_comm_send(headrace_comm* comm, const headrace_elements* input,
                                          int32_t destination, const headrace_message_options* options,
                                          headrace_work** work, headrace_error** error);
/* Receives the next message of the tag from a rank, or from HEADRACE_ANY_SOURCE: headrace_work_source tells
 * which. The message has as many bytes as `output`. */
HEADRACE_C_API int32_t headrace_comm_recv(headrace_comm* comm, const headrace_elements* output,
                                          int32_t source, const headrace_message_options* options,
                                          headrace_work** work, headrace_error** error);

/* ------------------------------------------------------------------ several calls as one */

/* Sends and receives that are issued together, so that none waits for another. Used by one thread at a time,
 * freed with headrace_batch_free. */
typedef struct headrace_batch headrace_batch;
HEADRACE_C_API int32_t headrace_comm_batch(headrace_comm* comm, headrace_batch** batch,
                                           headrace_error** error);
/* Add a message. The elements stay in place until the work has ended; the struct is copied. */
HEADRACE_C_API int32_t headrace_batch_send(headrace_batch* batch, const headrace_elements* input,
                                           int32_t destination, uint32_t tag, headrace_error** error);
HEADRACE_C_API int32_t headrace_batch_recv(headrace_batch* batch, const headrace_elements* output,
                                           int32_t source, uint32_t tag, headrace_error** error);
/* Begins all messages in the order in which they were added, once. The work ends when all have ended, with
 * the first error. `options` and `work` as above; there are no hints. */
HEADRACE_C_API int32_t headrace_batch_issue(headrace_batch* batch, const headrace_op_options* options,
                                            headrace_work** work, headrace_error** error);
/* Frees the handle. Messages that were issued go on. */
HEADRACE_C_API void headrace_batch_free(headrace_batch* batch);

/* Keeps the calls of this thread until headrace_comm_end_coalescing, which issues them together. Each is
 * checked at its call, and its work is that of all of them; memory as in an asynchronous operation.
 * headrace_comm_split, _finalize, _abort and _close are not kept. */
HEADRACE_C_API int32_t headrace_comm_start_coalescing(headrace_comm* comm, headrace_error** error);
/* Issues the calls in their order. The work ends when all have ended, with the first error; without `async`
 * the call waits for that. */
HEADRACE_C_API int32_t headrace_comm_end_coalescing(headrace_comm* comm, int32_t async, headrace_work** work,
                                                    headrace_error** error);
/* Forgets the calls: their work ends with canceled, and this reason, which may be NULL. */
HEADRACE_C_API int32_t headrace_comm_cancel_coalescing(headrace_comm* comm, const char* reason,
                                                       headrace_error** error);

/* ------------------------------------------------------------------ works */

typedef enum headrace_work_state {
  HEADRACE_WORK_NOT_STARTED = 0,
  HEADRACE_WORK_IN_PROGRESS = 1,
  HEADRACE_WORK_COMPLETED = 2,
  HEADRACE_WORK_TIMED_OUT = 3,
  HEADRACE_WORK_ABORTED = 4,
  HEADRACE_WORK_FAILED = 5
} headrace_work_state;
/* "completed" for HEADRACE_WORK_COMPLETED; "unknown" for none of them. Static text. */
HEADRACE_C_API const char* headrace_work_status_name(int32_t status);

/* A headrace_work_state. */
HEADRACE_C_API int32_t headrace_work_status(const headrace_work* work);
/* Whether it has ended, well or not. Makes progress with sends and receives. */
HEADRACE_C_API int32_t headrace_work_is_completed(const headrace_work* work);
/* Waits until it has ended: 0, the operation's error, or timed_out while it goes on. */
HEADRACE_C_API int32_t headrace_work_wait(const headrace_work* work, int64_t timeout_ns,
                                          headrace_error** error);
/* Of a communicator on a GPU: makes later work of the CUstream wait for the operation, and returns at once.
 */
HEADRACE_C_API int32_t headrace_work_wait_on(const headrace_work* work, void* stream, headrace_error** error);
/* Returns the code of the operation, 0 if it did not fail or has not ended, and its error. */
HEADRACE_C_API int32_t headrace_work_error(const headrace_work* work, headrace_error** error);
/* Of a receive that is completed: the rank that sent. Else -1. */
HEADRACE_C_API int32_t headrace_work_source(const headrace_work* work);
/* Frees the handle. The operation goes on. */
HEADRACE_C_API void headrace_work_free(headrace_work* work);

/* ------------------------------------------------------------------ first values */

/* Structs whose zeros have a meaning that is rarely wanted: no ranks, a deadline that has passed, a factor
 * of 0. Begin with these, as in: headrace_op_options options = HEADRACE_OP_OPTIONS_INIT; */
#define HEADRACE_COMM_OPTIONS_INIT                                                               \
  {                                                                                              \
    .struct_size = sizeof(headrace_comm_options), .size = 1, .meeting_timeout_ns = 120000000000, \
    .timeout_ns = 600000000000                                                                   \
  }
#define HEADRACE_SPLIT_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_split_options), .timeout_ns = -1, .meeting_timeout_ns = -1 }
#define HEADRACE_OP_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_op_options), .timeout_ns = -1, .factor = 1 }
#define HEADRACE_MESSAGE_OPTIONS_INIT \
  { .struct_size = sizeof(headrace_message_options), .timeout_ns = -1 }

#ifdef __cplusplus
}
#endif
#endif
