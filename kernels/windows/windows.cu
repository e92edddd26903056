// SPDX-License-Identifier: Apache-2.0
// The kernels of words of windows: one thread each.
#include "kernels/windows/windows.cuh"

namespace headrace::kernels::windows {

extern "C" __global__ void __launch_bounds__(1) headrace_window_signal(const __grid_constant__ Word args) {
  send_signal(args);
}
extern "C" __global__ void __launch_bounds__(1)
    headrace_window_wait_signal(const __grid_constant__ Word args) {
  wait_for_signal(args);
}
extern "C" __global__ void __launch_bounds__(1)
    headrace_window_atomic_add(const __grid_constant__ Word args) {
  add_to_element(args);
}

}  // namespace headrace::kernels::windows
