// SPDX-License-Identifier: Apache-2.0
// How the warps of a launch share a list of runs.
#pragma once

#include "kernels/common/warp_copy.cuh"

#include <headrace/plugin/kernels/gather_scatter_v1.h>

namespace headrace::kernels::gather_scatter {

/// Runs of any length, each of one warp.
template <int Unroll, Hint hint>
__device__ __forceinline__ void move_run_list(const headrace_move_runs_v1& args) {
  const WarpPlace warp;
  const auto* sources = reinterpret_cast<const unsigned long long*>(args.sources);
  const auto* targets = reinterpret_cast<const unsigned long long*>(args.targets);
  const auto* lengths = reinterpret_cast<const unsigned*>(args.lengths);
  for (unsigned long long i = warp.number; i < args.count; i += warp.count) {
    const unsigned length = __ldg(lengths + i);
    move_slice<Unroll, hint>(
        {args.source_base + __ldg(sources + i), args.target_base + __ldg(targets + i), length, 0, length},
        warp.lane);
  }
}

}  // namespace headrace::kernels::gather_scatter
