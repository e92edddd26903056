// SPDX-License-Identifier: Apache-2.0
#include "gpu/loaded_kernels.hpp"

namespace headrace::gpu {

Result<std::shared_ptr<const Kernels>> LoadedKernels::on(int ordinal) {
  const std::scoped_lock lock(mutex_);
  if (auto loaded = kernels_[ordinal].lock()) return loaded;
  if (!driver_) {
    HEADRACE_TRY(driver, source_.driver());
    driver_ = driver;
  }
  if (!library_) {
    HEADRACE_TRY(library, source_.kernels());
    library_.emplace(std::move(library));
  }
  HEADRACE_TRY(device, Device::open(*driver_, ordinal));
  HEADRACE_TRY(kernels, Kernels::open(*library_, std::move(device)));
  kernels_[ordinal] = kernels;
  return kernels;
}

}  // namespace headrace::gpu
