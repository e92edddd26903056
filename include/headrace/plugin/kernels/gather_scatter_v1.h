/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel family gather_scatter: moves pages, and runs of any length, between any two addresses that a
 * GPU can use. The rules are those of headrace/plugin/kernels_v1.h.
 */
#ifndef HEADRACE_PLUGIN_KERNELS_GATHER_SCATTER_V1_H
#define HEADRACE_PLUGIN_KERNELS_GATHER_SCATTER_V1_H

#include <headrace/plugin/kernels/pages_v1.h>
#include <headrace/plugin/kernels_v1.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_GATHER_SCATTER_FAMILY "gather_scatter"
#define HEADRACE_GATHER_SCATTER_FAMILY_VERSION 1u
#define HEADRACE_MOVE_FEW_MOST 8

/* Runs of any length: run i is lengths[i] bytes from source_base + sources[i] to target_base + targets[i].
 * One warp moves one run: the caller cuts long runs. */
typedef struct headrace_move_runs_v1 {
  size_t struct_size;
  uint64_t sources; /* address of uint64_t[count] */
  uint64_t targets; /* address of uint64_t[count] */
  uint64_t lengths; /* address of uint32_t[count] */
  uint64_t source_base;
  uint64_t target_base;
  uint64_t count; /* 0: the launch only reports its end */
  headrace_move_done_v1 done;
  uint32_t most_multiprocessors;
  uint32_t reserved;
} headrace_move_runs_v1;

/* A few runs that travel inside the launch, for the shortest time from post to done: one block moves them
 * all. */
typedef struct headrace_move_few_v1 {
  size_t struct_size;
  uint64_t sources[HEADRACE_MOVE_FEW_MOST];
  uint64_t targets[HEADRACE_MOVE_FEW_MOST];
  uint64_t lengths[HEADRACE_MOVE_FEW_MOST];
  uint64_t count; /* at most HEADRACE_MOVE_FEW_MOST; 0: the launch only reports its end */
  headrace_move_done_v1 done;
} headrace_move_few_v1;

typedef struct headrace_gather_scatter_v1 {
  headrace_kernel_family_v1 family;
  int32_t (*move_pages)(void* kernels, const headrace_move_pages_v1* args, void* stream);
  int32_t (*move_runs)(void* kernels, const headrace_move_runs_v1* args, void* stream);
  int32_t (*move_few)(void* kernels, const headrace_move_few_v1* args, void* stream);
} headrace_gather_scatter_v1;

#ifdef __cplusplus
}
#endif
#endif
