// SPDX-License-Identifier: Apache-2.0
// Entries are numbered in their order: each warp counts a share of them with counters of its own, then each
// counter gets what the warps before have counted.
#pragma once

#include "kernels/moe/turn.cuh"

namespace headrace::kernels::moe {

/// By a warp. Gives each entry of its share the number of those before it for the same expert, and counts all
/// of them in the warp's counters.
///   expert_of  of an entry; -1: none
///   counter    of this warp for an expert
///   give       (entry, number); an entry without an expert gets a number that says nothing
template <class ExpertOf, class Counter, class Give>
__device__ __forceinline__ void number_entries(const Share& share, const ExpertOf& expert_of,
                                               const Counter& counter, const Give& give) {
  for (uint64_t first = share.begin; first < share.end; first += warp_lanes) {
    const uint64_t entry = first + lane();
    const bool is_entry = entry < share.end;
    const decltype(expert_of(entry)) expert = is_entry ? expert_of(entry) : -1;
    const unsigned same = __match_any_sync(all_lanes, expert);
    const uint32_t before = expert >= 0 ? counter(static_cast<uint32_t>(expert)) : 0;
    __syncwarp();
    const auto place = static_cast<unsigned>(__popc(same & lanes_below()));
    if (expert >= 0 && place == 0)
      counter(static_cast<uint32_t>(expert)) = before + static_cast<uint32_t>(__popc(same));
    __syncwarp();
    if (is_entry) give(entry, before + place);
  }
}

/// Each of `count` counters gets the sum of those before it. Returns the sum of all.
template <class Counter>
__device__ __forceinline__ uint32_t add_up(unsigned count, const Counter& counter) {
  uint32_t total = 0;
  for (unsigned i = 0; i < count; ++i) {
    const uint32_t counted = counter(i);
    counter(i) = total;
    total += counted;
  }
  return total;
}

}  // namespace headrace::kernels::moe
