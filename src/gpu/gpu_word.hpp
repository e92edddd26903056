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

  /// In the caller's GPU memory: 8 bytes, aligned to 8, in place until the destructor has returned, which
  /// waits for the last store.
  ///   errors   as of make
  [[nodiscard]] static Result<std::shared_ptr<GpuWord>> at(const std::shared_ptr<const Device>& device,
                                                           cuda::Address address, std::uint64_t first);
  ~GpuWord();
  GpuWord(const GpuWord&) = delete;
  GpuWord& operator=(const GpuWord&) = delete;

  /// 8 bytes, aligned to 8.
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  /// The value that was given last.
  [[nodiscard]] std::uint64_t stored() const;
  [[nodiscard]] int device() const noexcept { return stream_.device().ordinal(); }
  /// Queues the store, unless the word is that high already. A fence of the whole system is before the store
  /// (cuStreamWriteValue64, default flags), so a kernel that sees the value sees what the CPU saw before.
  ///   errors   backend_failed: work of this context has failed, and with it the context
  Result<void> raise_to(std::uint64_t value);

 private:
  GpuWord(DeviceMemory memory, cuda::Address address, Stream stream)
      : memory_(std::move(memory)), address_(address), stream_(std::move(stream)) {}
  Result<void> begin_with(std::uint64_t first);
  Result<void> store(std::uint64_t value);

  const DeviceMemory memory_;  ///< empty: it is the caller's
  const cuda::Address address_;
  const Stream stream_;       ///< of its own: no other work delays a store
  mutable std::mutex mutex_;  ///< keeps the stores in the order of their values
  std::uint64_t stored_ = 0;
};

}  // namespace headrace::gpu
