// SPDX-License-Identifier: Apache-2.0
#include "cli/common/gpu_count.hpp"

#include "gpu/device.hpp"

namespace headrace::cli {

int count_gpus() {
  const auto driver = cuda::load_driver();
  if (!driver) return 0;
  const auto devices = gpu::list_devices(*driver);
  return devices ? static_cast<int>(devices->size()) : 0;
}

}  // namespace headrace::cli
