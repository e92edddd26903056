// SPDX-License-Identifier: Apache-2.0
// The kernels that move pages. Which of them fits a list is decided on the host, in gather_scatter.cpp.
#include "kernels/gather_scatter/gather_scatter.cuh"

#include "kernels/common/done.cuh"
#include "kernels/common/pages.cuh"
#include "kernels/gather_scatter/one_run.cuh"

namespace headrace::kernels::gather_scatter {

constexpr int few_unroll = 4;
constexpr unsigned few_threads = 256;

// A kernel for lists that the host has checked, and one for those that a device may have written.
#define HEADRACE_PAGE_KERNELS(kind)                                                               \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      headrace_move_##kind##_pages(const __grid_constant__ headrace_move_pages_v1 args) {         \
    move_##kind##_pages<page_unroll, page_hint, ToldPages>(args);                                 \
    tell_done(args.done);                                                                         \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      headrace_move_checked_##kind##_pages(const __grid_constant__ headrace_move_pages_v1 args) { \
    move_##kind##_pages<page_unroll, page_hint, CheckedPages>(args);                              \
    tell_done(args.done);                                                                         \
  }
HEADRACE_PAGE_KERNELS(aligned)
HEADRACE_PAGE_KERNELS(small)
HEADRACE_PAGE_KERNELS(row)
HEADRACE_PAGE_KERNELS(any)
#undef HEADRACE_PAGE_KERNELS

extern "C" __global__ void __launch_bounds__(512)
    headrace_move_runs(const __grid_constant__ headrace_move_runs_v1 args) {
  move_run_list<page_unroll, page_hint>(args);
  tell_done(args.done);
}

/// The code for ends of runs and odd alignments is kept out of the common case, whose code is short because
/// it is fetched anew at nearly every launch.
__device__ __noinline__ void move_few_oddly(const headrace_move_few_v1& args) {
  const WarpPlace warp;
  unsigned turn = 0;  // pieces handed out so far, of all runs
  for (unsigned i = 0; i < args.count; ++i) {
    RunSlice slice{args.sources[i], args.targets[i], args.lengths[i], 0, 0};
    const unsigned skew = static_cast<unsigned>(slice.target) & (vector_bytes - 1);
    for (unsigned long long end = row_bytes - skew; slice.begin < slice.run_bytes;
         slice.begin = slice.end, end += row_bytes, ++turn) {
      slice.end = end < slice.run_bytes ? end : slice.run_bytes;
      if (turn % static_cast<unsigned>(warp.count) == warp.number) move_slice<1, page_hint>(slice, warp.lane);
    }
  }
}

/// One block, vector by vector: all loads of a small run are issued at once.
extern "C" __global__ void __launch_bounds__(few_threads)
    headrace_move_few(const __grid_constant__ headrace_move_few_v1 args) {
  const unsigned count = static_cast<unsigned>(args.count);
  unsigned long long odd = 0;
  for (unsigned i = 0; i < count; ++i) odd |= args.sources[i] | args.targets[i] | args.lengths[i];
  if (odd % vector_bytes != 0) {
    move_few_oddly(args);
  } else {
    for (unsigned i = 0; i < count; ++i) {
      const auto* const from = reinterpret_cast<const uint4*>(args.sources[i]);
      auto* const to = reinterpret_cast<uint4*>(args.targets[i]);
      const unsigned long long vectors = args.lengths[i] / vector_bytes;
      for (unsigned long long v = threadIdx.x; v < vectors; v += few_unroll * few_threads) {
        uint4 held[few_unroll];
        each<few_unroll>([&]<int i>() {
          if (v + i * few_threads < vectors) held[i] = from[v + i * few_threads];
        });
        each<few_unroll>([&]<int i>() {
          if (v + i * few_threads < vectors) to[v + i * few_threads] = held[i];
        });
      }
    }
  }
  tell_done(args.done);
}

/// One small run, all of its loads in flight at once. Code and arguments are fetched anew at nearly every
/// launch, so it has no more than it needs: no list, no ends by bytes, no fence but the word's own.
extern "C" __global__ void __launch_bounds__(one_run_threads)
    headrace_move_one(const __grid_constant__ OneRun args) {
  constexpr int rows = one_run_threads / warp_lanes;  // of a round of all threads
  const auto* const from = reinterpret_cast<const uint4*>(args.source) + threadIdx.x;
  auto* const to = reinterpret_cast<uint4*>(args.target) + threadIdx.x;
  const unsigned vectors = static_cast<unsigned>(args.bytes) / vector_bytes;
  uint4 held[one_run_unroll];
  each<one_run_unroll>([&]<int i>() {
    if (threadIdx.x + i * one_run_threads < vectors) held[i] = load<i * rows, page_hint>(from);
  });
  each<one_run_unroll>([&]<int i>() {
    if (threadIdx.x + i * one_run_threads < vectors) store<i * rows, page_hint>(to, held[i]);
  });
  __syncthreads();
  if (threadIdx.x == 0) release(args.done.word, args.done.value);
}

}  // namespace headrace::kernels::gather_scatter
