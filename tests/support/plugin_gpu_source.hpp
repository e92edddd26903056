// SPDX-License-Identifier: Apache-2.0
// The driver and the kernels of the fake GPUs of support/plugin_gpu.hpp, for what opens GPUs itself.
#pragma once

#include "gpu/gpus.hpp"
#include "support/plugin_gpu.hpp"

namespace headrace::test {

[[nodiscard]] inline gpu::GpuSource plugin_gpu_source() {
  return {[]() -> Result<cuda::DriverTable> { return *plugin_gpu().driver; },
          [] { return gpu::KernelLibrary::from_table(*plugin_gpu().kernels, "the fake"); }};
}

}  // namespace headrace::test
