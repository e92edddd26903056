// SPDX-License-Identifier: Apache-2.0
// How a launch reports its end.
#pragma once

#include "kernels/common/words.cuh"

#include <headrace/plugin/kernels/pages_v1.h>

namespace headrace::kernels {

/// Reports the end of the move, if it has a word for it. Every thread of every block calls this last.
__device__ __forceinline__ void tell_done(const headrace_move_done_v1& done) {
  if (done.word == 0) return;
  __syncthreads();  // the block's stores come before what thread 0 tells
  if (threadIdx.x != 0) return;
  auto* const state = reinterpret_cast<headrace_move_state_v1*>(done.state);
  unsigned long long value = done.value;
  if (gridDim.x > 1) {
    // Pairs with the other blocks' fences: the last block to arrive sees all blocks' bytes.
    __threadfence_system();
    if (atomicAdd(&state->arrived, 1) + 1 != gridDim.x) return;
    state->arrived = 0;
    __threadfence_system();
  }
  if (value == 0) value = ++state->launches;
  // After the bytes, those of other threads by the barrier that they and this one have passed. Pairs with the
  // acquire of the thread that waits for the word. A fence would cost another part of a microsecond.
  release(done.word, value);
}

}  // namespace headrace::kernels
