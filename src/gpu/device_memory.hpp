// SPDX-License-Identifier: Apache-2.0
// GPU memory for the library's own data: page tables, states, staging.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace::gpu {

class DeviceMemory {
 public:
  /// The bytes are not initialised.
  ///   errors   invalid_argument (0 bytes), exhausted
  [[nodiscard]] static Result<DeviceMemory> allocate(std::shared_ptr<const Device> device, std::size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(std::move(other.device_)),
        address_(std::exchange(other.address_, 0)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { free(); }

  [[nodiscard]] cuda::Address address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  DeviceMemory(std::shared_ptr<const Device> device, cuda::Address address, std::size_t bytes)
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  void free() noexcept;

  std::shared_ptr<const Device> device_;
  cuda::Address address_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace headrace::gpu
