/* SPDX-License-Identifier: Apache-2.0
 *
 * A window as kernels get it: headrace/device/window.cuh has what they do with it. Window::get_device_window
 * gives its address, in memory of the GPU. Kernels read it; they do not write to it.
 */
#ifndef HEADRACE_DEVICE_WINDOW_V1_H
#define HEADRACE_DEVICE_WINDOW_V1_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_DEVICE_WINDOW_MOST_RANKS 16
#define HEADRACE_DEVICE_WINDOW_SIGNALS 16  /* signals of a pair of ranks, by number */
#define HEADRACE_DEVICE_WINDOW_COUNTERS 16 /* counters of a rank, which it alone uses */
#define HEADRACE_DEVICE_WINDOW_BARRIERS 16 /* barriers, by number */

/* Words of a rank, 0 at first, which are not those of Window::signal. Frozen. */
typedef struct headrace_device_words_v1 {
  uint64_t signals[HEADRACE_DEVICE_WINDOW_SIGNALS][HEADRACE_DEVICE_WINDOW_MOST_RANKS]; /* by sender */
  uint64_t barriers[HEADRACE_DEVICE_WINDOW_BARRIERS]
                   [HEADRACE_DEVICE_WINDOW_MOST_RANKS]; /* how often it came */
  uint64_t counters[HEADRACE_DEVICE_WINDOW_COUNTERS];
} headrace_device_words_v1;

/* Frozen. */
typedef struct headrace_device_window_v1 {
  uint32_t rank;
  uint32_t size;
  uint64_t elements[HEADRACE_DEVICE_WINDOW_MOST_RANKS]; /* of each rank, as this GPU sees them; 0: none */
  uint64_t bytes[HEADRACE_DEVICE_WINDOW_MOST_RANKS];    /* of them */
  uint64_t words[HEADRACE_DEVICE_WINDOW_MOST_RANKS];    /* headrace_device_words_v1 of each rank */
  uint64_t abort;     /* a uint64_t in mapped host memory: not 0 once the communicator has ended */
  int64_t timeout_ns; /* of a wait, from its beginning on; negative: none */
} headrace_device_window_v1;

#ifdef __cplusplus
}
#endif
#endif
