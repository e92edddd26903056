// SPDX-License-Identifier: Apache-2.0
// The kernels of operations of several ranks. Which of them fits is decided on the host, in collectives.cpp.
#include "kernels/collectives/chunks.cuh"
#include "kernels/collectives/direct.cuh"
#include "kernels/collectives/messages.cuh"
#include "kernels/collectives/packed.cuh"
#include "kernels/collectives/step.cuh"

namespace headrace::kernels::collectives {

template <bool Simple, class Number>
__device__ __forceinline__ void sum_packed(const Launch& args) {
  reduce_packed<FloatSum<Number, 1, Simple>, Plain<Simple, 1>>(args);
}
template <bool Simple, class Number>
__device__ __forceinline__ void sum_dense(const Launch& args) {
  using Format = Dense<Simple>;
  reduce_packed<FloatSum<Number, Format::words, Simple>, Format>(args);
}
template <bool Simple, class Number>
__device__ __forceinline__ void all_reduce_packed_as(const Launch& args) {
  all_reduce_packed<FloatSum<Number, 2, Simple>, Plain<Simple, 2, by_warp>>(args);
}
template <bool Simple, class Number>
__device__ __forceinline__ void all_reduce_dense(const Launch& args) {
  using Format = Dense<Simple>;
  all_reduce_packed<FloatSum<Number, Format::words, Simple>, Format>(args);
}
template <bool Simple, class Number>
__device__ __forceinline__ void sum_chunks(const Launch& args) {
  run_in_chunks<ReduceChunks<FloatSum<Number, 2, Simple>, Simple>>(args);
}
template <bool Simple, class Number>
__device__ __forceinline__ void sum_direct(const Launch& args) {
  using Sum = FloatSum<Number, 2, Simple>;
  run_direct<ReduceDirect<Sum>, ReduceChunks<Sum, Simple>>(args);
}

#define HEADRACE_COLLECTIVE(name, threads)                 \
  extern "C" __global__ void __launch_bounds__(threads, 1) \
      headrace_##name(const __grid_constant__ Launch args)
/// A kernel that has shorter code for simple operations.
#define HEADRACE_SUM(name, threads, work, number)             \
  HEADRACE_COLLECTIVE(name, threads) {                        \
    if (args.is_simple != 0) return work<true, number>(args); \
    work<false, number>(args);                                \
  }

HEADRACE_COLLECTIVE(exchange_packed, most_packed_threads) {
  if (args.is_simple != 0) return exchange_packed<true>(args);
  exchange_packed<false>(args);
}
HEADRACE_COLLECTIVE(exchange_chunks, chunk_threads) { run_in_chunks<ExchangeChunks>(args); }
extern "C" __global__ void __launch_bounds__(chunk_threads, 1)
    headrace_exchange_split(const __grid_constant__ SplitLaunch args) {
  run_in_split_chunks(args);
}
extern "C" __global__ void __launch_bounds__(step_threads, 1)
    headrace_exchange_step(const __grid_constant__ StepLaunch args) {
  run_step(args);
}
extern "C" __global__ void __launch_bounds__(chunk_threads, 1)
    headrace_exchange_messages(const __grid_constant__ MessagesLaunch args) {
  run_messages(args);
}
HEADRACE_COLLECTIVE(exchange_direct, chunk_threads) { run_direct<ExchangeDirect, ExchangeChunks>(args); }
HEADRACE_SUM(sum_packed_float32, most_packed_threads, sum_packed, Float32)
HEADRACE_SUM(sum_packed_bfloat16, most_packed_threads, sum_packed, BFloat16)
HEADRACE_SUM(sum_dense_float32, most_dense_threads, sum_dense, Float32)
HEADRACE_SUM(sum_dense_bfloat16, most_dense_threads, sum_dense, BFloat16)
HEADRACE_SUM(all_reduce_packed_float32, most_packed_threads, all_reduce_packed_as, Float32)
HEADRACE_SUM(all_reduce_packed_bfloat16, most_packed_threads, all_reduce_packed_as, BFloat16)
HEADRACE_SUM(all_reduce_dense_float32, most_dense_threads, all_reduce_dense, Float32)
HEADRACE_SUM(all_reduce_dense_bfloat16, most_dense_threads, all_reduce_dense, BFloat16)
HEADRACE_SUM(sum_chunks_float32, chunk_threads, sum_chunks, Float32)
HEADRACE_SUM(sum_chunks_bfloat16, chunk_threads, sum_chunks, BFloat16)
HEADRACE_SUM(sum_direct_float32, chunk_threads, sum_direct, Float32)
HEADRACE_SUM(sum_direct_bfloat16, chunk_threads, sum_direct, BFloat16)
HEADRACE_COLLECTIVE(reduce_packed_any, most_packed_threads) { reduce_packed<Any, Plain<false, 2>>(args); }
HEADRACE_COLLECTIVE(all_reduce_packed_any, most_packed_threads) {
  all_reduce_packed<Any, Plain<false, 2>>(args);
}
HEADRACE_COLLECTIVE(reduce_chunks_any, chunk_threads) { run_in_chunks<ReduceChunks<Any, false>>(args); }
HEADRACE_COLLECTIVE(reduce_direct_any, chunk_threads) {
  run_direct<ReduceDirect<Any>, ReduceChunks<Any, false>>(args);
}
#undef HEADRACE_SUM
#undef HEADRACE_COLLECTIVE

}  // namespace headrace::kernels::collectives
