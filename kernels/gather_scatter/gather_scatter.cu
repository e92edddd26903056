// SPDX-License-Identifier: Apache-2.0
// The kernels that move pages. Which of them fits a list is decided on the host, in gather_scatter.cpp.
#include "gather_scatter.cuh"

using namespace headrace::kernels;

namespace {
constexpr int unroll = 8;
constexpr Hint hint = Hint::no_allocate;
}  // namespace

extern "C" __global__ void __launch_bounds__(512)
    headrace_move_aligned_pages(const __grid_constant__ headrace_move_pages_v1 args) {
  move_aligned_pages<unroll, hint>(args);
  tell_done(args.done);
}

extern "C" __global__ void __launch_bounds__(512)
    headrace_move_small_pages(const __grid_constant__ headrace_move_pages_v1 args) {
  move_small_pages<unroll, hint>(args);
  tell_done(args.done);
}

extern "C" __global__ void __launch_bounds__(512)
    headrace_move_any_pages(const __grid_constant__ headrace_move_pages_v1 args) {
  move_any_pages<unroll, hint>(args);
  tell_done(args.done);
}

extern "C" __global__ void __launch_bounds__(512)
    headrace_move_parts(const __grid_constant__ headrace_move_parts_v1 args) {
  move_part_list<unroll, hint>(args);
  tell_done(args.done);
}

/// One block. Small moves are spread thin, a row a warp, so that all loads leave at once; larger ones by
/// whole tiles.
extern "C" __global__ void __launch_bounds__(512)
    headrace_move_few(const __grid_constant__ headrace_move_few_v1 args) {
  const WarpPlace warp;
  unsigned long long total = 0;
  for (unsigned i = 0; i < args.count; ++i) total += args.lengths[i];
  const unsigned piece = total <= warp.count * row_bytes ? row_bytes : row_bytes * unroll;
  unsigned long long turn = 0;  // pieces handed out so far, over all parts
  for (unsigned i = 0; i < args.count; ++i) {
    Stretch part{args.sources[i], args.targets[i], args.lengths[i], 0, 0};
    const unsigned skew = static_cast<unsigned>(part.target) & (vector_bytes - 1);
    for (unsigned long long end = piece - skew; part.begin < part.page_bytes;
         part.begin = part.end, end += piece, ++turn) {
      part.end = end < part.page_bytes ? end : part.page_bytes;
      if (turn % warp.count == warp.number) move_stretch<unroll, hint>(part, warp.lane);
    }
  }
  tell_done(args.done);
}
