// SPDX-License-Identifier: Apache-2.0
// Parts that go by copies which the host queues: what its side, the kernel and the reference share. A part
// travels in chunks that fill all slots of one way. The two ways are the two halves that chunks take in turn.
#pragma once

#include "kernels/collectives/box.cuh"

namespace headrace::kernels::collectives {

inline constexpr unsigned step_threads = 64;  // a warp for what this rank sends, one for what it receives

/// The argument of the kernel that runs between copies. Behind step n chunk n is sent, and chunk n - 1 goes
/// from this rank's box to its place. Step n says so of the copies before it, and waits for what those behind
/// it need. There are two steps more than chunks.
struct StepLaunch {
  Launch launch;
  uint32_t step;

  [[nodiscard]] HEADRACE_BOTH_SIDES bool is_last() const { return step == launch.chunks + 1; }
  /// The chunk that was sent before this step.
  [[nodiscard]] HEADRACE_BOTH_SIDES Chunk sent() const { return chunk(step - 1); }
  /// The chunk that was kept before this step.
  [[nodiscard]] HEADRACE_BOTH_SIDES Chunk kept() const { return chunk(step - 2); }
  /// Empty before the first chunk, whose number is then very large, and behind the last one.
  [[nodiscard]] HEADRACE_BOTH_SIDES Chunk chunk(uint32_t number) const {
    if (number >= launch.chunks) return {};
    return {0, launch.chunk_bytes, number, static_cast<uint64_t>(number) * launch.chunk_bytes};
  }
};

/// The half of a box through which a chunk goes. The words of its first slot tell of it.
HEADRACE_BOTH_SIDES Way half_of(const Chunk& chunk) {
  return (chunk.number & 1) != 0 ? Way::results : Way::parts;
}

}  // namespace headrace::kernels::collectives
