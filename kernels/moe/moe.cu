// SPDX-License-Identifier: Apache-2.0
// The kernels of dispatch and combine. A launch sends, receives, or does both.
#include "kernels/moe/choose.cuh"
#include "kernels/moe/combine.cuh"
#include "kernels/moe/dispatch.cuh"
#include "kernels/moe/window_rows.cuh"

namespace headrace::kernels::moe {

// One block a multiprocessor: all blocks of a launch are on the GPU at once, and wait for one another.
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    headrace_moe_dispatch(const __grid_constant__ DispatchLaunch args) {
  dispatch(args);
}
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    headrace_moe_combine(const __grid_constant__ CombineLaunch args) {
  combine<false>(args);
}
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    headrace_moe_combine_float8(const __grid_constant__ CombineLaunch args) {
  combine<true>(args);
}

extern "C" __global__ void __launch_bounds__(block_threads, 1)
    headrace_moe_choose(const __grid_constant__ ChooseLaunch args) {
  choose(args);
}
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    headrace_moe_window_rows(const __grid_constant__ WindowRowsLaunch args) {
  find_window_rows(args);
}

}  // namespace headrace::kernels::moe
