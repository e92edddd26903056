// SPDX-License-Identifier: Apache-2.0
// What torch and the driver know of a GPU.
#pragma once

#include <headrace/plugin/model_runtime_v1.h>

namespace headrace::torch_runtime {

/// GPUs that torch sees; 0 for a torch without GPUs.
[[nodiscard]] int gpu_count() noexcept;
/// Throws torch's exception if there is no such GPU.
void gpu_info(int index, headrace_device_info_v1& info);

}  // namespace headrace::torch_runtime
