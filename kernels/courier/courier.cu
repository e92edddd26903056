// SPDX-License-Identifier: Apache-2.0
// The kernel that stays.
#include "kernels/courier/courier.cuh"

namespace headrace::kernels::courier {

extern "C" __global__ void __launch_bounds__(courier_threads)
    headrace_courier(const __grid_constant__ headrace_courier_launch_v1 args) {
  __shared__ Board board;
  if (threadIdx.x == 0) board.clear();
  __syncthreads();
  if (threadIdx.x < mover_threads)
    move_jobs(args, board);
  else
    Lookout(args, board).run();
  __syncthreads();
  // The host reads it with acquire: then `finished` is its last value, and no job is looked at any more.
  if (threadIdx.x == 0) release(args.told + offsetof(headrace_courier_told_v1, left), args.launch);
}

}  // namespace headrace::kernels::courier
