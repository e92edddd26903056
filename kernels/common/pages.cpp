// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/pages.hpp"

#include <algorithm>

namespace headrace::kernels {
namespace {

/// Whether kernels know the form of its columns.
bool can_be_read(const headrace_move_side_v1& side) {
  const headrace_columns_v1& columns = side.columns;
  return columns.offsets == nullptr && columns.lengths == nullptr &&
         (columns.region_of == nullptr) == (side.bases == nullptr);
}

}  // namespace

bool is_aligned(const headrace_move_side_v1& side, std::uint32_t flags) {
  const bool bases = side.bases == nullptr || (flags & HEADRACE_MOVE_BASES_ALIGNED) != 0;
  return bases && (side.columns.base_offset | side.columns.stride_bytes) % vector_bytes == 0;
}

std::uint64_t blocks_for(const KernelSet& set, std::uint64_t warps, std::uint32_t most_multiprocessors) {
  constexpr std::uint64_t warps_per_block = page_threads / warp_lanes;
  const std::uint64_t budget = most_multiprocessors == 0
                                   ? set.multiprocessors()
                                   : std::min(most_multiprocessors, set.multiprocessors());
  return std::clamp<std::uint64_t>((warps + warps_per_block - 1) / warps_per_block, 1, budget);
}

bool can_report(const headrace_move_done_v1& done) { return done.word == 0 || done.state != 0; }

bool are_complete(const headrace_move_pages_v1& args) {
  const headrace_columns_v1 &source = args.source.columns, &target = args.target.columns;
  const bool can_be_checked =
      args.bounds == 0 || (args.refused != 0 && source.indices != nullptr && target.indices != nullptr);
  return args.struct_size >= sizeof args && source.page_bytes != 0 &&
         source.page_bytes == target.page_bytes && can_be_read(args.source) && can_be_read(args.target) &&
         can_report(args.done) && can_be_checked;
}

}  // namespace headrace::kernels
