/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family grids: moves pages that consist of several runs, with strides of their own on each side.
 * The rules are those of headrace/plugin/kernels_v1.h.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_GRIDS_V1_H
#define HEADRACE_PLUGIN_KERNELS_GRIDS_V1_H

#include <headrace/plugin/kernels/pages_v1.h>
#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_GRIDS_FAMILY "grids"
#define HEADRACE_GRIDS_FAMILY_VERSION 1u
#define HEADRACE_MOVE_GRID_MOST 4

/* Pages of counts[0] x ... x counts[dimensions - 1] runs, two at least: pages of one run each are
 * gather_scatter's. Run n[0], n[1], ... begins n[0] * strides[0] + n[1] * strides[1] + ... bytes after the
 * begin of its page on that side. */
typedef struct headrace_move_grids_v1 {
  size_t struct_size;
  headrace_move_pages_v1 pages; /* page_bytes: sum of all runs of a page. Its struct_size is set too */
  uint32_t dimensions;          /* 1 to HEADRACE_MOVE_GRID_MOST */
  uint32_t reserved;
  uint64_t run_bytes;                       /* any number > 0, any alignment */
  uint64_t counts[HEADRACE_MOVE_GRID_MOST]; /* last dimension fastest; pages.count * all counts < 2^31 */
  uint64_t source_strides[HEADRACE_MOVE_GRID_MOST];
  uint64_t target_strides[HEADRACE_MOVE_GRID_MOST];
} headrace_move_grids_v1;

typedef struct headrace_grids_v1 {
  headrace_kernel_family_v1 family;
  int32_t (*move_grids)(void* kernels, const headrace_move_grids_v1* args, void* stream);
} headrace_grids_v1;

#ifdef __cplusplus
}
#endif
#endif
