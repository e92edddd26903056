// SPDX-License-Identifier: Apache-2.0
// Host memory that GPUs reach: allocated pinned, or a caller's memory that is pinned in place.
#pragma once

#include "gpu/device.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace headrace::gpu {

/// How GPUs use host memory of a caller. Memory that this process cannot write is pinned for reading.
enum class PinAccess { read, read_write };

class PinnedMemory {
 public:
  /// Allocates host memory that every GPU of the process can reach. Filled with zeros.
  ///   errors   invalid_argument (0 bytes), exhausted
  [[nodiscard]] static Result<PinnedMemory> allocate(std::shared_ptr<const Device> device, std::size_t bytes);
  /// Pins the caller's memory, which must stay as long as this object. Memory that is pinned already, by the
  /// caller or by another library, is used as it is.
  ///   errors   invalid_argument (0 bytes), exhausted, backend_failed (cannot be pinned, or a part of it is
  ///            pinned already)
  [[nodiscard]] static Result<PinnedMemory> pin(std::shared_ptr<const Device> device,
                                                std::span<std::byte> bytes,
                                                PinAccess access = PinAccess::read_write);
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : device_(std::move(other.device_)),
        bytes_(std::exchange(other.bytes_, {})),
        address_(std::exchange(other.address_, 0)),
        holding_(other.holding_) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory() { give_back(); }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  /// Its address on GPUs.
  [[nodiscard]] cuda::Address address() const noexcept { return address_; }

 private:
  enum class Holding { allocated, pinned, somebody_elses };

  PinnedMemory(std::shared_ptr<const Device> device, std::span<std::byte> bytes, Holding holding)
      : device_(std::move(device)), bytes_(bytes), holding_(holding) {}
  [[nodiscard]] Result<void> find_address();
  [[nodiscard]] bool is_pinned_whole() const;
  void give_back() noexcept;

  std::shared_ptr<const Device> device_;
  std::span<std::byte> bytes_;
  cuda::Address address_ = 0;
  Holding holding_ = Holding::somebody_elses;
};

}  // namespace headrace::gpu
