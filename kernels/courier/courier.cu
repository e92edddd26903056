// SPDX-License-Identifier: Apache-2.0
// The kernel that stays.
#include "kernels/courier/courier.cuh"

using namespace headrace::kernels;

extern "C" __global__ void __launch_bounds__(courier_threads)
    headrace_courier(const __grid_constant__ headrace_courier_v1 args) {
  __shared__ unsigned long long words[HEADRACE_COURIER_WORDS];
  auto* const told = reinterpret_cast<headrace_courier_told_v1*>(args.told);
  Lookout lookout(args);
  for (unsigned long long number = args.first;; ++number) {
    // Nobody reads the words of the job before: all have come through the barrier below.
    if (threadIdx.x < warp_lanes) words[threadIdx.x] = lookout.wait_for(number);
    __syncthreads();
    if (words[0] == 0) break;
    move_job(words);
    __syncthreads();
    if (threadIdx.x == 0) tell(&told->finished, number);
  }
  // The host reads it with acquire: then `finished` is its last value, and no job is looked at any more.
  if (threadIdx.x == 0) tell(&told->left, args.launch);
}
