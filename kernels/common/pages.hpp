// SPDX-License-Identifier: Apache-2.0
// The host's half of every kernel that moves a list of pages: which kernels fit the list, and how many blocks
// share it.
#pragma once

#include "kernels/common/kernel_set.hpp"
#include "kernels/common/tile.cuh"

#include <headrace/plugin/kernels/pages_v1.h>

#include <cstdint>

namespace headrace::kernels {

/// A kernel in two forms: for lists that the host has checked, and for those that a GPU may have written.
struct PagesKernel {
  void* told;
  void* checked;

  [[nodiscard]] void* fitting(const headrace_move_pages_v1& args) const {
    return args.bounds != 0 ? checked : told;
  }
};

/// The length of every page.
[[nodiscard]] inline std::uint64_t page_bytes(const headrace_move_pages_v1& args) {
  return args.source.columns.page_bytes;
}
/// Whether vectors can begin where each page of the side begins.
[[nodiscard]] bool is_aligned(const headrace_move_side_v1& side, std::uint32_t flags);
/// The number of tiles that `bytes` bytes fill.
[[nodiscard]] constexpr std::uint64_t tiles_of(std::uint64_t bytes) {
  return (bytes + tile_bytes - 1) / tile_bytes;
}
/// A block for each `page_threads` threads of work, within the budget; one at least.
[[nodiscard]] std::uint64_t blocks_for(const KernelSet& set, std::uint64_t warps,
                                       std::uint32_t most_multiprocessors);
/// Whether a launch of several blocks has what it needs to report this end.
[[nodiscard]] bool can_report(const headrace_move_done_v1& done);
/// Whether the columns have a form that kernels know, and the arguments what their report and their checks
/// need.
[[nodiscard]] bool are_complete(const headrace_move_pages_v1& args);

}  // namespace headrace::kernels
