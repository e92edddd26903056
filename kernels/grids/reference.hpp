// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder do, on the CPU: by nested loops, with nothing of the kernels' arithmetic.
#pragma once

#include "kernels/common/reference.hpp"
#include "kernels/grids/run_grid.cuh"

namespace headrace::kernels::grids {

extern const reference::Family reference_family;

/// A list of pages that are grids of runs, as its arguments have it.
class GridsMove {
 public:
  using Args = GridLaunch;
  explicit GridsMove(const Args& args) : grid_(args.grid), pages_(args.pages) {}

  [[nodiscard]] const headrace_move_done_v1& done() const { return pages_.done(); }
  [[nodiscard]] bool can_be_read(const reference::Memory& memory) const { return pages_.can_be_read(memory); }
  template <class Run>
  void each_run(const Run& run) const {
    pages_.each_run([&](std::uint64_t source, std::uint64_t target, std::uint64_t) {
      each_run_of_page(grid_.dimensions, source, target, run);
    });
  }

 private:
  /// Calls `run` for each run of a page from dimension `left` - 1 on inwards.
  template <class Run>
  void each_run_of_page(unsigned left, std::uint64_t source, std::uint64_t target, const Run& run) const {
    if (left == 0) return run(source, target, std::uint64_t{grid_.run_bytes});
    for (std::uint64_t i = 0; i < grid_.counts[left - 1].by; ++i)
      each_run_of_page(left - 1, source + i * grid_.source_strides[left - 1],
                       target + i * grid_.target_strides[left - 1], run);
  }

  const RunGrid& grid_;
  const reference::PagesMove pages_;
};

}  // namespace headrace::kernels::grids
