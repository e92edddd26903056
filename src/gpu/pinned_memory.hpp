// SPDX-License-Identifier: Apache-2.0
// Host memory that GPUs reach: allocated as such, or somebody's memory pinned where it lies.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace headrace::gpu {

class PinnedMemory {
 public:
  /// Host memory of our own, reachable by every GPU of the process. Zeroed.
  ///   errors   invalid_argument (0 bytes), exhausted
  [[nodiscard]] static Result<PinnedMemory> allocate(std::shared_ptr<const Device> device, std::size_t bytes);
  /// Pins the caller's memory, which must stay until this goes.
  ///   errors   invalid_argument (0 bytes), exhausted, backend_failed (pinned already, or cannot be
  ///            pinned)
  [[nodiscard]] static Result<PinnedMemory> pin(std::shared_ptr<const Device> device,
                                                std::span<std::byte> bytes);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : device_(std::move(other.device_)),
        bytes_(std::exchange(other.bytes_, {})),
        address_(std::exchange(other.address_, 0)),
        ours_(other.ours_) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory() { give_back(); }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// Where GPUs see it.
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }

 private:
  PinnedMemory(std::shared_ptr<const Device> device, std::span<std::byte> bytes, cuda::Address address,
               bool ours)
      : device_(std::move(device)), bytes_(bytes), address_(address), ours_(ours) {}
  void give_back() noexcept;

  std::shared_ptr<const Device> device_;
  std::span<std::byte> bytes_;
  cuda::Address address_ = 0;
  bool ours_ = false;  // allocated here, not only pinned
};

}  // namespace headrace::gpu
