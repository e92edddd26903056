// SPDX-License-Identifier: Apache-2.0
// The argument of the kernel for one small run: shared by device code and the host's half.
#pragma once

#include "kernels/common/tile.cuh"

#include <headrace/plugin/kernels/pages_v1.h>

namespace headrace::kernels::gather_scatter {

/// As short as it can be: each line of a launch's arguments is fetched from memory anew, and the whole launch
/// waits for it.
struct OneRun {
  uint64_t source, target;     ///< multiples of 16
  uint64_t bytes;              ///< a multiple of 16, at most one_run_most_bytes
  headrace_move_done_v1 done;  ///< `word` and `value` are not 0, `state` is not read
};

inline constexpr unsigned one_run_threads = 256;
inline constexpr unsigned one_run_unroll = 4;  // vectors of a thread
inline constexpr unsigned one_run_most_bytes = one_run_threads * one_run_unroll * vector_bytes;

}  // namespace headrace::kernels::gather_scatter
