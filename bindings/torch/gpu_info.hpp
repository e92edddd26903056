// SPDX-License-Identifier: Apache-2.0
// What is known of a GPU: what torch says of it, and its driver.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

namespace headrace::torch_runtime {

/// GPUs that torch sees; 0 for a torch without GPUs.
[[nodiscard]] int gpu_count() noexcept;
/// Throws what torch throws where there is no such GPU.
void gpu_info(int index, headrace_device_info_v1& info);

}  // namespace headrace::torch_runtime
