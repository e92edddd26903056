// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU: by nested loops, with nothing of the kernels' arithmetic.
#pragma once

#include "kernels/gather_scatter/reference.hpp"
#include "kernels/grids/run_grid.cuh"

namespace headrace::kernels::reference {

/// Tells `run(source, target)` of each run of a page from dimension `left` - 1 on inwards.
template <class Run>
void each_run(const RunGrid& grid, unsigned left, std::uint64_t source, std::uint64_t target,
              const Run& run) {
  if (left == 0) return run(source, target);
  for (std::uint64_t i = 0; i < grid.counts[left - 1].by; ++i)
    each_run(grid, left - 1, source + i * grid.source_strides[left - 1],
             target + i * grid.target_strides[left - 1], run);
}

template <class Part>
void each_part(const GridLaunch& args, Part part) {
  each_part(args.pages, [&](std::uint64_t source, std::uint64_t target, std::uint64_t) {
    each_run(args.grid, args.grid.dimensions, source, target, [&](std::uint64_t from, std::uint64_t to) {
      part(from, to, std::uint64_t{args.grid.run_bytes});
    });
  });
}

inline void move(const GridLaunch& args) {
  each_part(args, [](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
    std::memcpy(at<void>(target), at<const void>(source), bytes);
  });
  tell_done(args.pages.done);
}

}  // namespace headrace::kernels::reference
