// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/pages.hpp"

#include <algorithm>

namespace headrace::kernels {

bool is_aligned(const headrace_move_side_v1& side, std::uint32_t flags) {
  const bool base =
      side.base_of != 0 ? (flags & HEADRACE_MOVE_BASES_ALIGNED) != 0 : side.base % vector_bytes == 0;
  return base && side.stride % vector_bytes == 0;
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
  const bool can_be_checked =
      args.bounds == 0 || (args.refused != 0 && args.source.indices != 0 && args.target.indices != 0);
  return args.struct_size >= sizeof args && args.page_bytes != 0 && can_report(args.done) && can_be_checked;
}

}  // namespace headrace::kernels
