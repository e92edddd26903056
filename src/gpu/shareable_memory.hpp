// SPDX-License-Identifier: Apache-2.0
// GPU memory that other agents may map: of the virtual memory API, with a descriptor.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace::gpu {

/// What others have mapped stays until they unmap it, also when this object has gone.
class ShareableMemory {
 public:
  /// Filled with zeros. The size is rounded up to that of a physical allocation.
  ///   errors   invalid_argument (0 bytes), not_supported (this GPU exports no descriptors), exhausted
  [[nodiscard]] static Result<ShareableMemory> allocate(std::shared_ptr<const Device> device,
                                                        std::size_t bytes);
  ShareableMemory() = default;
  ShareableMemory(ShareableMemory&& other) noexcept
      : device_(std::move(other.device_)),
        address_(std::exchange(other.address_, 0)),
        bytes_(std::exchange(other.bytes_, 0)),
        is_mapped_(std::exchange(other.is_mapped_, false)) {}
  ShareableMemory& operator=(ShareableMemory&&) = delete;
  /// Nothing of this process uses it any more.
  ~ShareableMemory();

  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  explicit ShareableMemory(std::shared_ptr<const Device> device) : device_(std::move(device)) {}
  [[nodiscard]] Result<void> map(std::size_t bytes);
  [[nodiscard]] Result<void> clear() const;

  std::shared_ptr<const Device> device_;
  cuda::Address address_ = 0;  // of the reserved range
  std::size_t bytes_ = 0;
  bool is_mapped_ = false;
};

}  // namespace headrace::gpu
