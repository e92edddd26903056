// SPDX-License-Identifier: Apache-2.0
// Copies between two regions of our own of which one at least is GPU memory: by the driver, which knows every
// kind of memory.
#pragma once

#include "local/region.hpp"

#include <headrace/result.hpp>

namespace headrace::local {

/// Copies that are queued on one GPU's stream, and waited for together.
class GpuCopies {
 public:
  /// Queues one; `to_region` or `from_region` is of a GPU. After a failure nothing is queued.
  void add(const Region& to_region, std::uint64_t to_offset, const Region& from_region,
           std::uint64_t from_offset, std::uint64_t bytes);
  /// Waits until the bytes are there.
  ///   errors  backend_failed
  [[nodiscard]] Result<void> wait();

 private:
  const gpu::WorkingGpu* gpu_ = nullptr;  // null: nothing was queued
  cuda::Outcome outcome_ = cuda::Outcome::success;
};

}  // namespace headrace::local
