/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel arguments that several families share: lists of pages of one length, and how a launch reports its
 * end. The rules are those of headrace/plugin/kernels_v1.h.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_PAGES_V1_H
#define HEADRACE_PLUGIN_KERNELS_PAGES_V1_H

#include <headrace/plugin/columns_v1.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One side of a list of pages of one length, as columns that the GPU reads: their pointers are addresses of
 * the GPU's. With k = indices ? indices[i] : i, page i begins at the address
 *   (region_of ? bases[region_of[k]] : 0) + base_offset + k * stride_bytes
 * `offsets` and `lengths` are NULL. Frozen. */
typedef struct headrace_move_side_v1 {
  headrace_columns_v1 columns;
  const uint64_t* bases; /* the address of each region, or NULL if region_of is NULL */
} headrace_move_side_v1;

/* State in device memory that several launches share. It begins as zeros. Launches that overlap need a state
 * each. Frozen. */
typedef struct headrace_move_state_v1 {
  uint32_t arrived; /* blocks of the running launch that are done; 0 between launches */
  uint32_t reserved;
  uint64_t launches; /* number of launches that stored this count: those with `value` 0 */
} headrace_move_state_v1;

/* How a move reports its end: it stores `value` to `word` once host and GPUs can see every byte. A reader
 * that loads the value with acquire sees the bytes. Frozen. */
typedef struct headrace_move_done_v1 {
  /* Address of a uint64_t, for example in mapped host memory. 0: nothing is stored, the stream's order
   * suffices. */
  uint64_t word;
  uint64_t value; /* 0: store the number of launches with this state and value 0, this one included */
  /* Address of a headrace_move_state_v1. 0 only if word is 0, or if value is not 0 and one block moves
   * (move_few). */
  uint64_t state;
} headrace_move_done_v1;

/* Bounds of page indices that a device may write between launches; in device memory. Frozen. */
typedef struct headrace_move_bounds_v1 {
  uint64_t source_pages; /* indices of the source must be below this */
  uint64_t target_pages; /* indices of the target must be below this */
  uint32_t count;        /* pages of the next launch, but at most `count` of the arguments */
  uint32_t reserved;
} headrace_move_bounds_v1;

/* Pages of one length: both sides have the same page_bytes, which is any number > 0. Frozen: other arguments
 * contain it. */
typedef struct headrace_move_pages_v1 {
  size_t struct_size;
  headrace_move_side_v1 source;
  headrace_move_side_v1 target;
  uint64_t count; /* 0: the launch only reports its end */
  headrace_move_done_v1 done;
  uint32_t most_multiprocessors; /* that the move may occupy; 0: all of the GPU */
  uint32_t flags;                /* HEADRACE_MOVE_BASES_ALIGNED or 0 */
  /* Address of a headrace_move_bounds_v1. 0: none, the host has checked the indices. Else both sides have
   * `indices`, and a page with an index out of bounds is skipped. */
  uint64_t bounds;
  /* With bounds: address of a uint64_t in mapped host memory. For one of the skipped pages the kernel stores
   * 2 * page + 1 if the source's index was out of bounds, 2 * page + 2 if the target's index was. */
  uint64_t refused;
} headrace_move_pages_v1;
/* All of `bases`, which the host may be unable to read, are multiples of 16. */
#define HEADRACE_MOVE_BASES_ALIGNED 1u

#ifdef __cplusplus
}
#endif
#endif
