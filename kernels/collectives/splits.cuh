// SPDX-License-Identifier: Apache-2.0
// Parts whose lengths lie in GPU memory: they are read when the operation begins.
#pragma once

#include "kernels/collectives/box.cuh"

namespace headrace::kernels::collectives {

/// What is to be cut into a part for, and from, each rank.
struct Splits {
  Part input, output;
  uint64_t gives, gets;  ///< addresses of int64_t for each rank: elements of its part
  uint32_t width;        ///< bytes of an element
};
/// The argument of the kernel that reads them. The launch has no parts.
struct SplitLaunch {
  Launch launch;
  Splits splits;
};

/// What is wrong with splits: HEADRACE_COLLECTIVES_*, 0 if nothing is; for which rank; its value.
struct WrongSplit {
  uint64_t reason;
  unsigned rank;
  uint64_t value;
};

/// Cuts `whole` into parts, one behind the other.
HEADRACE_BOTH_SIDES WrongSplit cut(const Part& whole, uint32_t width, const int64_t* splits, unsigned ranks,
                                   uint64_t reason, Part* parts) {
  uint64_t at = 0;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    const auto split = static_cast<uint64_t>(splits[rank]);  // a negative one is larger than any memory
    if (split > (whole.bytes - at) / width) return {reason, rank, split};
    parts[rank] = {whole.address + at, split * width};
    at += parts[rank].bytes;
  }
  return {};
}

/// Gives the launch its parts. It is not to run if one is wrong.
HEADRACE_BOTH_SIDES WrongSplit place_parts(const Splits& splits, const int64_t* gives, const int64_t* gets,
                                           Launch& launch) {
  const unsigned ranks = launch.shape.ranks, self = launch.rank;
  WrongSplit wrong =
      cut(splits.input, splits.width, gives, ranks, HEADRACE_COLLECTIVES_WRONG_INPUT_SPLIT, launch.sends);
  if (wrong.reason == 0)
    wrong = cut(splits.output, splits.width, gets, ranks, HEADRACE_COLLECTIVES_WRONG_OUTPUT_SPLIT,
                launch.receives);
  if (wrong.reason == 0 && launch.sends[self].bytes != launch.receives[self].bytes)
    wrong = {HEADRACE_COLLECTIVES_OWN_SPLITS_DIFFER, self, static_cast<uint64_t>(gets[self])};
  if (wrong.reason != 0) return wrong;
  uint64_t longest = 0;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    if (launch.sends[rank].bytes > longest) longest = launch.sends[rank].bytes;
    if (launch.receives[rank].bytes > longest) longest = launch.receives[rank].bytes;
  }
  launch.own = launch.sends[self];
  launch.chunks = static_cast<uint32_t>((longest + launch.chunk_bytes - 1) / launch.chunk_bytes);
  return {};
}

}  // namespace headrace::kernels::collectives
