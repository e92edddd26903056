// SPDX-License-Identifier: Apache-2.0
// The kernels of operations of several ranks. Which of them fits is decided on the host, in collectives.cpp.
#include "kernels/collectives/chunks.cuh"
#include "kernels/collectives/packed.cuh"

namespace headrace::kernels::collectives {

#define HEADRACE_COLLECTIVE(name, threads, work)             \
  extern "C" __global__ void __launch_bounds__(threads, 1)   \
      headrace_##name(const __grid_constant__ Launch args) { \
    work(args);                                              \
  }
HEADRACE_COLLECTIVE(exchange_packed, most_packed_threads, exchange_packed)
HEADRACE_COLLECTIVE(sum_packed_float32, most_packed_threads, (reduce_packed<FloatSum<Float32, 1>>))
HEADRACE_COLLECTIVE(sum_packed_bfloat16, most_packed_threads, (reduce_packed<FloatSum<BFloat16, 1>>))
HEADRACE_COLLECTIVE(reduce_packed_any, most_packed_threads, reduce_packed<Any>)
HEADRACE_COLLECTIVE(all_reduce_packed_float32, most_packed_threads,
                    (all_reduce_packed<FloatSum<Float32, 2>, by_warp>))
HEADRACE_COLLECTIVE(all_reduce_packed_bfloat16, most_packed_threads,
                    (all_reduce_packed<FloatSum<BFloat16, 2>, by_warp>))
HEADRACE_COLLECTIVE(all_reduce_packed_any, most_packed_threads, (all_reduce_packed<Any, adjacent>))
HEADRACE_COLLECTIVE(exchange_chunks, chunk_threads, exchange_chunks)
HEADRACE_COLLECTIVE(sum_chunks_float32, chunk_threads, (reduce_chunks<FloatSum<Float32, 2>>))
HEADRACE_COLLECTIVE(sum_chunks_bfloat16, chunk_threads, (reduce_chunks<FloatSum<BFloat16, 2>>))
HEADRACE_COLLECTIVE(reduce_chunks_any, chunk_threads, reduce_chunks<Any>)
#undef HEADRACE_COLLECTIVE

}  // namespace headrace::kernels::collectives
