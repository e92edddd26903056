// SPDX-License-Identifier: Apache-2.0
// One small part as its kernel is told it: shared by device code and the host's half.
#pragma once

#include <headrace/plugin/kernels_v1.h>

namespace headrace::kernels {

/// What it takes and no more: each line of a launch's arguments is fetched from memory anew, with the whole
/// launch waiting.
struct OnePart {
  uint64_t source, target;     ///< multiples of 16
  uint64_t bytes;              ///< a multiple of 16, at most one_part_most_bytes
  headrace_move_done_v1 done;  ///< `word` and `value` are not 0, `state` is not looked at
};

inline constexpr unsigned one_part_threads = 256;
inline constexpr unsigned one_part_unroll = 4;  // vectors of a thread
inline constexpr unsigned one_part_most_bytes = one_part_threads * one_part_unroll * 16;

}  // namespace headrace::kernels
