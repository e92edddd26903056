// SPDX-License-Identifier: Apache-2.0
// Registered memory of a GPU. Addresses are reused, so the driver's buffer ids tell whether it is still the
// same memory.
#pragma once

#include "gpu/gpus.hpp"

#include <cstdint>
#include <memory>

namespace headrace::gpu {

/// Does not own the memory.
///   threads  any
class RegisteredMemory {
 public:
  /// Finds the memory; opens the GPU if it is not open yet.
  ///   errors   not_found (no GPU memory at that address), invalid_argument (it belongs to another GPU),
  ///            exhausted, and those of Gpus::open
  [[nodiscard]] static Result<RegisteredMemory> find(Gpus& gpus, int device, cuda::Address address,
                                                     std::uint64_t bytes);

  [[nodiscard]] const std::shared_ptr<const WorkingGpu>& gpu() const noexcept { return gpu_; }
  /// Identifies the memory: two objects with the same number have the same allocations.
  [[nodiscard]] std::uint64_t buffers() const noexcept { return buffers_; }

  /// Checks that all of it is still the memory that was registered: some driver calls for each allocation.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged(std::uint32_t region_id) const;
  /// The same for its first byte only: one driver call.
  [[nodiscard]] bool begins_as_before() const;

 private:
  RegisteredMemory() = default;

  std::shared_ptr<const WorkingGpu> gpu_;
  cuda::Address address_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t buffers_ = 0;
  std::uint64_t first_buffer_ = 0;
};

}  // namespace headrace::gpu
