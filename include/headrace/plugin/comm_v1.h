/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of functions that a backend of communicators implements, and the table of functions that the host
 * offers to it.
 *
 * A backend is a shared object `libheadrace_comm_<name>.so` that exports `headrace_comm_v1_table`, or a table
 * that its process registers (headrace_register_comm_backend, headrace::register_comm_backend).
 * CommOptions::backend names it. Before a call reaches a backend the host has checked its arguments and given
 * it its number. The host also calls the hooks, keeps the deadlines, and wakes those that wait.
 *
 * Rules for every entry
 *   sizes     every struct begins with struct_size, except headrace_comm_elements_v1, which is frozen. The
 *             side that makes a struct sets it. Fields are only ever appended: read a field only if
 *             struct_size covers it (HEADRACE_HAS)
 *   borders   no C++ type, exception or allocator crosses. The side that made memory frees it. A pointer
 *             argument is valid during the call unless its sentence says longer
 *   threads   any entry may be called from any thread. Of one communicator the host begins one collective
 *             (issue, split, shrink, tensor_register, tensor_deregister, suspend, resume, init_handle,
 *             reconfigure, window_open, window_close, window_issue) at a time, and one message (issue of send
 *             or recv) at a time. These two, `abort`, `progress` and the setters may be called beside each
 *             other. `progress` is never called twice at once. `close` comes last, beside no other entry
 *   locks     while the host is in an entry it holds no lock that one of its functions takes, so a backend
 *             may hold its own while it calls the host
 *   blocking  `open`, `split` and `reconfigure` may wait for other ranks, until meeting_timeout_ns.
 *             `issue` may too, if it runs the operation in the call, and so may tensor_register,
 *             tensor_deregister, suspend, resume, window_open and window_close: until their timeout_ns or
 *             `abort`. No other entry may
 *   re-entry  inside a host function the host calls no entry of the communicator
 *   errors    an entry that can fail returns a value of headrace_code_v1 and may write a sentence into `why`:
 *             what was tried, with its values. The host puts rank, operation and communicator before it
 *   devices   elements are in memory of the communicator's device. On a GPU an operation is ordered by
 *             streams: it sees what was queued on the call's stream before `issue`. A call that is not
 *             async makes later work of that stream wait for it; for one that is async, `wait_on` does. No
 *             entry waits for a stream. A work ends when its elements are no longer used
 *   unload    a backend is never unloaded
 */
#ifndef HEADRACE_PLUGIN_COMM_V1_H
#define HEADRACE_PLUGIN_COMM_V1_H

#include <headrace/plugin/backend_v1.h>
#include <headrace/plugin/dtype_v1.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_COMM_ABI_MAJOR 1u
#define HEADRACE_COMM_ABI_MINOR 2u
#define HEADRACE_COMM_SYMBOL "headrace_comm_v1_table"

/* The values of headrace::CommOperation. They never change. */
typedef enum headrace_comm_operation_v1 {
  HEADRACE_COMM_ALL_REDUCE = 2,
  HEADRACE_COMM_BROADCAST = 3,
  HEADRACE_COMM_REDUCE = 4,
  HEADRACE_COMM_ALL_GATHER = 5,
  HEADRACE_COMM_ALL_GATHER_V = 6,
  HEADRACE_COMM_ALL_GATHER_SINGLE = 7,
  HEADRACE_COMM_REDUCE_SCATTER = 8,
  HEADRACE_COMM_REDUCE_SCATTER_V = 9,
  HEADRACE_COMM_REDUCE_SCATTER_SINGLE = 10,
  HEADRACE_COMM_ALL_TO_ALL = 11,
  HEADRACE_COMM_ALL_TO_ALL_SINGLE = 12,
  HEADRACE_COMM_ALL_TO_ALL_V_SINGLE = 13,
  HEADRACE_COMM_GATHER = 14,
  HEADRACE_COMM_GATHER_SINGLE = 15,
  HEADRACE_COMM_SCATTER = 16,
  HEADRACE_COMM_BARRIER = 17,
  HEADRACE_COMM_SEND = 18,
  HEADRACE_COMM_RECV = 19,
  HEADRACE_COMM_DEVICE_ALL_TO_ALL_V_SINGLE =
      24, /* inputs: the elements, the output splits, the input splits.
             Splits are int64, read when the operation begins: refuse those
             that do not fit, and write nothing beside the output */
  /* Of windows: window_issue takes them, and `issue` does not. */
  HEADRACE_COMM_PUT = 34,
  HEADRACE_COMM_GET = 35,
  HEADRACE_COMM_SIGNAL = 36,
  HEADRACE_COMM_WAIT_SIGNAL = 37,
  HEADRACE_COMM_ATOMIC_ADD = 38
} headrace_comm_operation_v1;

/* The values of headrace::ReduceOp::Kind, whose comment says what each does with which type. They never
 * change. */
typedef enum headrace_comm_reduction_v1 {
  HEADRACE_COMM_SUM = 0,
  HEADRACE_COMM_PRODUCT = 1,
  HEADRACE_COMM_MIN = 2,
  HEADRACE_COMM_MAX = 3,
  HEADRACE_COMM_AVG = 4,
  HEADRACE_COMM_BAND = 5,
  HEADRACE_COMM_BOR = 6,
  HEADRACE_COMM_BXOR = 7,
  HEADRACE_COMM_PREMUL_SUM = 8 /* the sum of each rank's elements times `factor` */
} headrace_comm_reduction_v1;

/* Contiguous elements of the caller, in memory of the communicator's device. They stay in place until the
 * work has ended. A backend does not write to inputs. Frozen. */
typedef struct headrace_comm_elements_v1 {
  void* data; /* may be NULL if there are none */
  uint64_t count;
  int32_t dtype; /* headrace_dtype_v1 */
} headrace_comm_elements_v1;

/* One call. The elements are in place until the work has ended; all else, the lists too, until `issue`
 * returns. */
typedef struct headrace_comm_call_v1 {
  size_t struct_size;
  int32_t operation; /* headrace_comm_operation_v1; refuse one that you do not know: not_supported */
  int32_t async;     /* whether the caller goes on while it runs */
  /* Of the communicator's collectives, the same on all ranks, or of this rank's messages; from 1. */
  uint64_t number;
  /* As include/headrace/comm.hpp has them: lists have an entry for each rank; broadcast and reduce have their
   * memory in both; gather and scatter have no list on ranks other than the root. An input and an output are
   * the same memory, or do not overlap. */
  const headrace_comm_elements_v1* inputs;
  const headrace_comm_elements_v1* outputs;
  uint64_t input_count;
  uint64_t output_count;
  /* Of all_to_all_v_single: elements for each rank, `split_count` of both. */
  const uint64_t* input_splits;
  const uint64_t* output_splits;
  uint64_t split_count;
  int32_t reduction;  /* headrace_comm_reduction_v1, of operations that reduce */
  int32_t peer;       /* the root, or the other rank of a message; -1: none, or any source */
  double factor;      /* of HEADRACE_COMM_PREMUL_SUM */
  int64_t timeout_ns; /* from now on; negative: none. The host ends a work that is late */
  uint32_t tag;       /* of messages: a recv takes those of its tag alone */
  uint32_t hint_count;
  const headrace_setting_v1* hints; /* of this call; refuse those that you do not know */
  void* stream;                     /* on a GPU: a CUstream, NULL: its default stream; else NULL */
} headrace_comm_call_v1;

/* What a signal does to the word that its sender has at the receiver. The values of headrace::Signal::Kind.
 * They never change. */
typedef enum headrace_comm_signal_v1 {
  HEADRACE_COMM_SIGNAL_ADD = 0,
  HEADRACE_COMM_SIGNAL_SET = 1
} headrace_comm_signal_v1;

/* How a word, unsigned, compares with a value. The values of headrace::Comparison. They never change. */
typedef enum headrace_comm_comparison_v1 {
  HEADRACE_COMM_EQ = 0,
  HEADRACE_COMM_NE = 1,
  HEADRACE_COMM_LT = 2,
  HEADRACE_COMM_LE = 3,
  HEADRACE_COMM_GT = 4,
  HEADRACE_COMM_GE = 5,
  HEADRACE_COMM_TAKE = 6 /* it is above 0; the wait takes 1 from it */
} headrace_comm_comparison_v1;

/* The memory of a window on this rank, and what is known of the others. `counts` and `places` are the host's,
 * with an entry for each rank. */
typedef struct headrace_comm_window_v1 {
  size_t struct_size;
  /* Of this rank. With a count and no address the backend makes them, filled with zeros, sets the address,
   * and frees them after window_close. The same type on all ranks: invalid_argument. */
  headrace_comm_elements_v1 elements;
  uint64_t window;  /* set by the backend: a number, not 0, for the entries below */
  uint64_t* counts; /* set by the backend: elements of each rank */
  uint64_t* places; /* set by the backend: where this rank's device sees those of each rank; 0: nowhere */
  /* set by the backend: a headrace_device_window_v1 (headrace/device/window_v1.h) in memory of the device,
   * until window_close; NULL: its windows are not for kernels */
  void* device_window;
} headrace_comm_window_v1;

/* One operation of a window. It has an end and a deadline of its own: an error ends no other one. The
 * elements and `result` are in place until the work has ended; all else until window_issue returns. */
typedef struct headrace_comm_window_call_v1 {
  size_t struct_size;
  int32_t operation; /* headrace_comm_operation_v1: one of windows; refuse one that you do not know */
  int32_t async;     /* as in a call; wait_signal and atomic_add wait for no stream then */
  uint64_t window;   /* of window_open */
  int32_t peer;      /* whose elements, or to whom or from whom the signal goes. May be this rank */
  int32_t kind;      /* of signal: headrace_comm_signal_v1; of wait_signal: headrace_comm_comparison_v1 */
  headrace_comm_elements_v1 elements; /* of put and get: this rank's */
  uint64_t offset;                    /* of put, get and atomic_add: the first element of the peer's */
  uint64_t value;                     /* of signal, wait_signal and atomic_add, whose sums wrap around */
  uint64_t* result;   /* of wait_signal and atomic_add: the value before, once the work has ended well. Of 4
                         bytes   with a sign: extended */
  int64_t timeout_ns; /* from now on, or from when its stream has come to it; negative: none */
  void* stream;       /* as in a call */
} headrace_comm_window_call_v1;

/* ------------------------------------------------------------------ functions of the host */

typedef struct headrace_comm_host_v1 {
  size_t struct_size;
  uint32_t abi_minor;
  uint32_t message_limit; /* longer messages of `end`, `ended` and `log` are cut to so many bytes */
  void* context;          /* first argument of every function below */

  /* Ends a work for which `issue` returned HEADRACE_COMM_BEGUN: once, from any thread, also inside `issue`.
   * Afterwards the backend touches none of its elements. A work that has ended is ignored.
   *   code     0, or headrace_code_v1: then the communicator ends, and `abort` follows on another thread,
   *            unless the work is of window_issue
   *   message  may be NULL
   *   source   of a recv: the rank that sent; else not read */
  void (*end)(void* context, uint64_t work, int32_t code, const char* message, size_t length, int32_t source);
  /* The communicator has ended and no work of this rank says why: another rank has aborted it, or is gone.
   * Works that are under way return this error; `abort` follows on another thread. */
  void (*ended)(void* context, int32_t code, const char* message, size_t length);

  int (*log_enabled)(void* context, int32_t level); /* headrace_log_level_v1 */
  void (*log)(void* context, int32_t level, const char* text, size_t length);

  /* A store of keys that all ranks of this communicator share, and no other communicator, for how they find
   * each other. Only inside `open` and `split`. The first call of either waits until all ranks have called
   * one of them. Returns a value of headrace_code_v1; `get` of a key without a value: HEADRACE_NOT_FOUND at
   * once. The store ends with rank 0's `close` or earlier: rank 0 returns from `open` after the others have
   * read what they need. */
  int32_t (*set)(void* context, const char* key, const void* value, size_t length, headrace_text_v1* why);
  int32_t (*get)(void* context, const char* key, const headrace_sink_v1* value, headrace_text_v1* why);
} headrace_comm_host_v1;

/* ------------------------------------------------------------------ functions of the backend */

#define HEADRACE_COMM_CPU (-1)

/* Bits of headrace_comm_backend_v1::devices. */
typedef enum headrace_comm_devices_v1 {
  HEADRACE_COMM_MOVES_HOST_MEMORY = 1,
  HEADRACE_COMM_MOVES_CUDA_MEMORY = 2
} headrace_comm_devices_v1;

/* What a communicator is made of. */
typedef struct headrace_comm_setup_v1 {
  size_t struct_size;
  const headrace_comm_host_v1* host; /* until `close` returns */
  int32_t rank;                      /* 0 to size - 1 */
  int32_t size;
  int32_t device; /* the ordinal of the GPU whose memory it moves; HEADRACE_COMM_CPU: host memory */
  int32_t reserved;
  const char* name;     /* the same on all ranks */
  const int32_t* ranks; /* `size` numbers: the ranks of this one in the communicator that was opened first */
  int64_t meeting_timeout_ns;       /* until all ranks have come; negative: none */
  int64_t timeout_ns;               /* of each call, unless it has its own; negative: none */
  const headrace_setting_v1* hints; /* refuse those that you do not know */
  uint64_t hint_count;
} headrace_comm_setup_v1;

/* What `issue` returns if it does not return an error. */
typedef enum headrace_comm_issued_v1 {
  HEADRACE_COMM_BEGUN = -1, /* `end` will follow, or has been called inside `issue` */
  HEADRACE_COMM_DONE = 0 /* no `end` follows. A recv from any source ends by `end`, which tells the source */
} headrace_comm_issued_v1;

typedef struct headrace_comm_backend_v1 {
  size_t struct_size;
  uint32_t abi_major; /* HEADRACE_COMM_ABI_MAJOR and _MINOR of the header it was built with */
  uint32_t abi_minor;
  const char* name;    /* [a-z0-9_]+, at most 64; that of its library */
  const char* version; /* for the reader */
  uint32_t devices;    /* whose memory it moves: headrace_comm_devices_v1, at least one */
  uint32_t reserved;
  void* context; /* first argument of open; the backend's own */

  /* Makes this rank's part of a communicator and connects it to the others. *comm becomes a handle, not NULL,
   * for the entries below. */
  int32_t (*open)(void* context, const headrace_comm_setup_v1* setup, void** comm, headrace_text_v1* why);
  /* Leaves and frees the handle. Every work has been ended or aborted. When it returns the backend touches no
   * element of a caller any more, calls no function of the host, and has ended its threads. Waits for no
   * rank. */
  void (*close)(void* comm);
  /* Begins an operation. It runs it and returns HEADRACE_COMM_DONE, or begins it and returns
   * HEADRACE_COMM_BEGUN, or returns an error: then nothing has begun on this rank, and the next call gets the
   * same number. If it has run the operation and failed, it calls `end` and returns HEADRACE_COMM_BEGUN.
   * Collectives run in order of issue. Messages pass each other only if peer or tag differ.
   *   owns  copies what it needs of `call`; the elements stay the caller's
   *   work  what `end` takes; never 0, never used twice */
  int32_t (*issue)(void* comm, const headrace_comm_call_v1* call, uint64_t work, headrace_text_v1* why);
  /* The communicator has ended on this rank, for this reason. The backend tells the other ranks, ends every
   * work soon, and refuses later calls. The host ends those that are not ended 50 ms later: until `end` or
   * `close` it keeps their memory if it has an owner. Once at most. Does not wait. */
  void (*abort)(void* comm, const char* reason, size_t length);

  /* ---- entries that may be NULL */

  /* Makes a communicator of `rank_count` ranks of this one, in that order. All ranks of this one call it, in
   * the order of collectives, each with its own group. No ranks: this rank is in no group, setup is NULL and
   * *part stays NULL. Else as `open`. NULL: split returns not_supported. */
  int32_t (*split)(void* comm, const int32_t* ranks, uint64_t rank_count, const headrace_comm_setup_v1* setup,
                   void** part, headrace_text_v1* why);
  /* Makes a communicator of the ranks of this one but `excluded`, which died or are to go, in the same order.
   * Works that are under way end. This one may have been aborted, and is used no more. Else as `open`. NULL:
   * shrink returns not_supported. */
  int32_t (*shrink)(void* comm, const int32_t* excluded, uint64_t excluded_count,
                    const headrace_comm_setup_v1* setup, void** part, headrace_text_v1* why);
  /* Changes hints for later calls: those that were given, not all. NULL: set_hints returns not_supported. */
  int32_t (*set_hints)(void* comm, const headrace_setting_v1* hints, uint64_t count, headrace_text_v1* why);
  /* Changes the timeout for later calls; negative: none. NULL: each call has its own anyway. */
  void (*set_timeout)(void* comm, int64_t timeout_ns);
  /* Makes progress with works under way and returns whether something moved. Called again and again by
   * threads that wait, and by one of the host's while works are under way. NULL: the backend has threads. */
  int32_t (*progress)(void* comm);
  /* On a GPU: makes later work of `stream` wait for a work. One that has ended is nothing to wait for. Beside
   * any entry but `close` and `progress`. NULL: the host waits itself. */
  int32_t (*wait_on)(void* comm, uint64_t work, void* stream, headrace_text_v1* why);
  /* Calls that belong together, so that none waits for another: `issue` between these two checks a call,
   * takes it and returns HEADRACE_COMM_BEGUN; group_end begins all in their order. The host begins no other
   * call between them. If group_end returns an error, the calls and the communicator end with it. Both NULL:
   * such calls are issued one after another. */
  void (*group_start)(void* comm);
  int32_t (*group_end)(void* comm, headrace_text_v1* why);

  /* ---- since version 1.1 */

  /* Writes into `why` what a late work waits for, as in "rank 1 has not come". The host ends this work, and
   * with it the communicator, directly afterwards: to find out, a backend may let its operations end early,
   * and wait 10 ms for them. It ends no work from here to `abort`. Beside any entry but `close` and
   * `progress`. NULL: it cannot say. */
  void (*waits_for)(void* comm, uint64_t work, headrace_text_v1* why);
  /* Calls will use these elements again and again: a backend may move them without a copy. It changes speed
   * alone. A collective as split: all ranks call it, in the order of collectives, each with elements of its
   * own, and their counts may differ. The host calls it when this rank's collectives have ended. It may wait
   * for other ranks, until timeout_ns (negative: none) or `abort`. An error on one rank is one on all, and
   * nothing is registered then.
   *   owns          the elements stay in place until tensor_deregister succeeds, or `close`
   *   registration  becomes a number, not 0, for tensor_deregister
   * Both NULL: registering does nothing. */
  int32_t (*tensor_register)(void* comm, const headrace_comm_elements_v1* tensor, int64_t timeout_ns,
                             uint64_t* registration, headrace_text_v1* why);
  /* Takes back what tensor_register has done: afterwards no rank uses the elements. Called and waits as
   * tensor_register. After an error they are still registered. */
  int32_t (*tensor_deregister)(void* comm, uint64_t registration, int64_t timeout_ns, headrace_text_v1* why);

  /* ---- since version 1.2: a communicator that sleeps */

  /* Gives back memory that it can do without while no call runs. A collective as tensor_register, which the
   * host calls when no call of this rank is under way; it begins none before `resume`. A rank that does not
   * come ends the communicator. Both NULL: suspend returns not_supported. */
  int32_t (*suspend)(void* comm, int64_t timeout_ns, headrace_text_v1* why);
  /* Takes the memory again. Called and waits as suspend. */
  int32_t (*resume)(void* comm, int64_t timeout_ns, headrace_text_v1* why);

  /* ---- since version 1.2: ranks that the caller brings together, without a store */

  /* Writes this rank, for one reconfigure. It may have been aborted. */
  int32_t (*init_handle)(void* comm, const headrace_sink_v1* handle, headrace_text_v1* why);
  /* Makes a communicator of the ranks behind these handles, setup->size of them, in this order; setup->rank
   * is that of this one. Each of them calls it. This communicator stays as it is, and may have been aborted.
   * The host gives no store. Else as `open`. Both NULL: reconfigure returns not_supported. */
  int32_t (*reconfigure)(void* comm, const char* uuid, const headrace_bytes_v1* handles,
                         const headrace_comm_setup_v1* setup, void** made, headrace_text_v1* why);

  /* ---- since version 1.2: windows. All three, or NULL: there are none */

  /* Registers elements of this rank that the others put to and get from, and a word for each ordered pair of
   * ranks, 0 at first. A collective, as tensor_register. An error on one rank is one on all.
   *   owns  the elements stay in place until window_close succeeds, or `close` */
  int32_t (*window_open)(void* comm, headrace_comm_window_v1* window, int64_t timeout_ns,
                         headrace_text_v1* why);
  /* Takes the window back: afterwards no rank uses the elements. A collective, as tensor_deregister. It ends
   * waits of this rank that are under way, with canceled, and waits for its other works. */
  int32_t (*window_close)(void* comm, uint64_t window, int64_t timeout_ns, headrace_text_v1* why);
  /* Begins an operation, as `issue`, which no other rank takes part in. Rank, range and types have been
   * checked. Operations of a window on this rank run in the order of issue, but wait_signal, which waits for
   * none and is waited for by none. A signal after a put to the same rank comes after its bytes. If `end`
   * tells an error, the communicator goes on. */
  int32_t (*window_issue)(void* comm, const headrace_comm_window_call_v1* call, uint64_t work,
                          headrace_text_v1* why);
} headrace_comm_backend_v1;

/* The size of the table in version 1.0. */
#define HEADRACE_COMM_BACKEND_V1_SIZE \
  (offsetof(headrace_comm_backend_v1, group_end) + sizeof(((headrace_comm_backend_v1*)0)->group_end))

/* The one function of a library. NULL: it cannot be used on this machine. */
typedef const headrace_comm_backend_v1* (*headrace_comm_v1_function)(void);

#ifdef __cplusplus
}
#endif

#endif
