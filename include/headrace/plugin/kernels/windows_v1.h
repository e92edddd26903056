/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family windows: words in GPU memory of other ranks, which this rank changes, and words of its
 * own, for which it waits. kernels/windows/README.md says what each kernel does. The rules are those of
 * headrace/plugin/kernels_v1.h.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_WINDOWS_V1_H
#define HEADRACE_PLUGIN_KERNELS_WINDOWS_V1_H

#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_WINDOWS_FAMILY "windows"
#define HEADRACE_WINDOWS_FAMILY_VERSION 1u

/* How a launch that writes a status has ended. */
#define HEADRACE_WINDOWS_DONE 1u
#define HEADRACE_WINDOWS_ABORTED 2u
#define HEADRACE_WINDOWS_TIMED_OUT 3u

/* In mapped host memory, 0 at first. Frozen. */
typedef struct headrace_windows_status_v1 {
  uint64_t reason;   /* HEADRACE_WINDOWS_*; written last, with release */
  uint32_t rank;     /* waited */
  uint32_t peer;     /* for a signal of this rank */
  uint64_t expected; /* the value of the condition */
  uint64_t seen;     /* the word as it was last read; of atomic_add: the value before */
} headrace_windows_status_v1;

/* One word of a window, in memory that this GPU maps. A launch is one thread.
 *   signal       changes a word of 64 bits as `kind`, headrace_comm_signal_v1, says, after all that its
 * stream held before wait_signal  waits until `kind`, headrace_comm_comparison_v1, holds for a word of 64
 * bits and `value`. It leaves once the word at `abort` is not 0, or `timeout_ns` after it began (negative:
 * never) atomic_add   adds to an integer of `kind` bytes, 4 or 8, in one step for all ranks status       of
 * wait_signal and atomic_add; else not read errors       the driver's invalid value: an impossible kind, a
 * word that is not at a multiple of its bytes, or no status */
typedef struct headrace_windows_word_v1 {
  size_t struct_size;
  uint64_t word;
  uint64_t value;
  int32_t kind;
  uint32_t rank; /* for the status */
  uint32_t peer;
  uint32_t reserved;
  uint64_t abort;  /* a uint64_t in mapped host memory; 0: none */
  uint64_t status; /* headrace_windows_status_v1 */
  int64_t timeout_ns;
} headrace_windows_word_v1;

typedef struct headrace_windows_v1 {
  headrace_kernel_family_v1 family;
  int32_t (*signal)(void* kernels, const headrace_windows_word_v1* args, void* stream);
  int32_t (*wait_signal)(void* kernels, const headrace_windows_word_v1* args, void* stream);
  int32_t (*atomic_add)(void* kernels, const headrace_windows_word_v1* args, void* stream);
} headrace_windows_v1;

#ifdef __cplusplus
}
#endif
#endif
