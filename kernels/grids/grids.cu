// SPDX-License-Identifier: Apache-2.0
// The kernels that move pages which are grids of runs. Which of them fits is decided on the host, in
// grids.cpp.
#include "kernels/grids/grids.cuh"

#include "kernels/common/done.cuh"

namespace headrace::kernels::grids {

// A kernel for lists that the host has checked, and one for those that a device may have written.
#define HEADRACE_GRID_KERNELS(kind, move)                                          \
  extern "C" __global__ void __launch_bounds__(512)                                \
      headrace_move_grid_##kind(const __grid_constant__ GridLaunch args) {         \
    move<page_unroll, page_hint, GridRuns<ToldPages>>(args);                       \
    tell_done(args.pages.done);                                                    \
  }                                                                                \
  extern "C" __global__ void __launch_bounds__(512)                                \
      headrace_move_checked_grid_##kind(const __grid_constant__ GridLaunch args) { \
    move<page_unroll, page_hint, GridRuns<CheckedPages>>(args);                    \
    tell_done(args.pages.done);                                                    \
  }
HEADRACE_GRID_KERNELS(tiles, move_run_tiles)
HEADRACE_GRID_KERNELS(small, move_small_pages)
HEADRACE_GRID_KERNELS(aligned, move_aligned_pages)
HEADRACE_GRID_KERNELS(any, move_any_pages)
#undef HEADRACE_GRID_KERNELS

}  // namespace headrace::kernels::grids
