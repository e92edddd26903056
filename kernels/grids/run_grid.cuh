// SPDX-License-Identifier: Apache-2.0
// Where the runs of a page lie that is a grid of them: arithmetic that kernels and host code share.
#pragma once

#include <headrace/plugin/kernels/grids_v1.h>

#if defined(__CUDACC__)
#define HEADRACE_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define HEADRACE_BOTH_SIDES inline
#endif

namespace headrace::kernels::grids {

/// Division of numbers below 2^31 by one that all of a launch share, 2 or more: a multiplication and a shift.
/// A GPU divides by a routine of many instructions, and a run's place takes up to four divisions.
struct Divisor {
  unsigned by;
  unsigned multiplier;  ///< ceil(2^(31 + n) / by), where 2^n is the least power that is not below `by`
  unsigned shift;       ///< n - 1

  HEADRACE_BOTH_SIDES static Divisor of(unsigned by) {
    unsigned n = 1;
    while (n < 32 && (1ull << n) < by) ++n;
    return {by, static_cast<unsigned>(((1ull << (31 + n)) + by - 1) / by), n - 1};
  }
  [[nodiscard]] HEADRACE_BOTH_SIDES unsigned divide(unsigned number) const {
    return static_cast<unsigned>((static_cast<unsigned long long>(number) * multiplier) >> 32) >> shift;
  }
};

/// A grid in the form that kernels take. Dimensions are counted from the innermost one, none has the
/// extent 1.
struct RunGrid {
  unsigned long long run_bytes;
  unsigned runs;  ///< in a page: 2 or more
  unsigned dimensions;
  Divisor per_page;
  Divisor counts[HEADRACE_MOVE_GRID_MOST];
  unsigned long long source_strides[HEADRACE_MOVE_GRID_MOST];
  unsigned long long target_strides[HEADRACE_MOVE_GRID_MOST];

  /// Adds the place of run `run` of a page, on each side.
  HEADRACE_BOTH_SIDES void add_place(unsigned run, unsigned long long& source,
                                     unsigned long long& target) const {
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (unsigned d = 0; d < HEADRACE_MOVE_GRID_MOST; ++d) {
      if (d + 1 >= dimensions) {  // what is left is the outermost number
        source += run * source_strides[d];
        target += run * target_strides[d];
        return;
      }
      const unsigned rest = counts[d].divide(run);
      const unsigned digit = run - rest * counts[d].by;
      source += digit * source_strides[d];
      target += digit * target_strides[d];
      run = rest;
    }
  }
};

/// The argument of the kernels of this folder.
struct GridLaunch {
  headrace_move_pages_v1 pages;
  RunGrid grid;
};

}  // namespace headrace::kernels::grids
