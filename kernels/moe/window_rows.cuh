// SPDX-License-Identifier: Apache-2.0
// Where results lie in the windows of other ranks, so that experts may write them there themselves. The half
// of a window alternates, so a launch finds it out, once its ranks have taken what was there.
#pragma once

#include "kernels/moe/rows.cuh"

namespace headrace::kernels::moe {

/// Layout by rank: rows of a source that came before the budget's end.
__device__ __forceinline__ uint64_t written_rows(const Common& args, unsigned source) {
  const uint32_t* const records = at<const RoutingHead>(args.routing)->records;
  uint64_t first = 0;
  for (unsigned before = 0; before < source; ++before) first += records[before];
  const uint64_t left = first < args.output_rows ? args.output_rows - first : 0;
  return records[source] < left ? records[source] : left;
}

/// By the only block.
__device__ __forceinline__ void find_window_rows(const WindowRowsLaunch& args) {
  __shared__ uint64_t rooms;
  const Common& common = args.common;
  Turn turn(common, op_combine);
  if (turn.begins()) {
    if (warp() == 0) {
      const uint64_t found = ranks_with_room(common, turn, offsetof(PeerWords, combine_taken));
      if (lane() == 0) rooms = found;
    }
    __syncthreads();
    const unsigned source = threadIdx.x;
    if (source < common.window.ranks) {
      const bool has_room = (rooms >> source & 1) != 0;
      const uint64_t first = common.window.group_slot(common.member(source), 0);
      const uint64_t rows =
          common.windows[source] + common.window.partial_at(turn.sends(), common.rank, first);
      at<headrace_moe_window_rows_v1>(args.of_ranks)[source] = {
          has_room ? rows : 0, has_room ? static_cast<int64_t>(written_rows(common, source)) : 0};
    }
  }
  turn.end(Turn::no_word);
}

}  // namespace headrace::kernels::moe
