// SPDX-License-Identifier: Apache-2.0
// Which allocations lie at an address of a GPU. Addresses are reused, so the driver's buffer ids tell whether
// it is still the same memory.
#pragma once

#include "gpu/device.hpp"

#include <cstdint>
#include <memory>

namespace headrace::gpu {

/// Does not own the memory.
///   threads  any
class MemoryIdentity {
 public:
  ///   errors   not_found (some of it is no GPU memory, or not any more)
  [[nodiscard]] static Result<MemoryIdentity> of(std::shared_ptr<const Device> device, cuda::Address address,
                                                 std::uint64_t bytes);

  /// Two objects with the same number have the same allocations.
  [[nodiscard]] std::uint64_t buffers() const noexcept { return buffers_; }
  /// Checks that all of it is still the same memory: some driver calls for each allocation.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged() const;
  /// The same for its first byte only: one driver call.
  [[nodiscard]] bool begins_as_before() const;

 private:
  MemoryIdentity() = default;

  std::shared_ptr<const Device> device_;
  cuda::Address address_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t buffers_ = 0;
  std::uint64_t first_buffer_ = 0;
};

}  // namespace headrace::gpu
