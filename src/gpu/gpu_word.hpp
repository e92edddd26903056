// SPDX-License-Identifier: Apache-2.0
// A growing number in GPU memory that kernels poll. The CPU writes it, and does not wait for the GPU.
#pragma once

#include "gpu/device_memory.hpp"
#include "gpu/stream.hpp"

#include <cstdint>
#include <memory>
#include <mutex>

namespace headrace::gpu {

///   threads  any
class GpuWord {
 public:
  /// Allocates it and writes the first value.
  ///   errors   exhausted, not_supported (this driver writes no words from a stream), backend_failed
  [[nodiscard]] static Result<std::shared_ptr<GpuWord>> make(const std::shared_ptr<const Device>& device,
                                                             std::uint64_t first);

  /// 8 bytes, aligned to 8.
  [[nodiscard]] cuda::Address address() const noexcept { return memory_.address(); }
  [[nodiscard]] int device() const noexcept { return stream_.device().ordinal(); }
  /// Queues the store, unless the word is that high already. A fence of the whole system is before the store
  /// (cuStreamWriteValue64, default flags), so a kernel that sees the value sees what the CPU saw before.
  ///   errors   backend_failed: work of this context has failed, and with it the context
  Result<void> raise_to(std::uint64_t value);

 private:
  GpuWord(DeviceMemory memory, Stream stream) : memory_(std::move(memory)), stream_(std::move(stream)) {}
  Result<void> store(std::uint64_t value);

  const DeviceMemory memory_;
  const Stream stream_;  ///< of its own: no other work delays a store
  std::mutex mutex_;     ///< keeps the stores in the order of their values
  std::uint64_t stored_ = 0;
};

}  // namespace headrace::gpu
