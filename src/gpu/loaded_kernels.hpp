// SPDX-License-Identifier: Apache-2.0
// The kernels of a process: loaded once on each GPU, for all that use them at a time.
#pragma once

#include "gpu/gpus.hpp"
#include "gpu/kernel_library.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace headrace::gpu {

/// Loads nothing before it is asked.
///   threads  any
class LoadedKernels {
 public:
  explicit LoadedKernels(GpuSource source) : source_(std::move(source)) {}

  /// The kernels on a GPU. They go with the last user.
  ///   errors   those of GpuSource, of Device::open and of Kernels::open
  [[nodiscard]] Result<std::shared_ptr<const Kernels>> on(int ordinal);

 private:
  const GpuSource source_;
  std::mutex mutex_;
  std::optional<cuda::DriverTable> driver_;
  std::optional<KernelLibrary> library_;
  std::map<int, std::weak_ptr<const Kernels>> kernels_;  // by GPU
};

}  // namespace headrace::gpu
