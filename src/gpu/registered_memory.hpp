// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that was registered. Addresses come back: whether it is still the same memory is told by
// the driver's buffer ids.
#pragma once

#include "gpu/gpus.hpp"

#include <cstdint>
#include <memory>

namespace headrace::gpu {

/// Does not own the memory. Any thread.
class RegisteredMemory {
 public:
  /// Opens the GPU, if nobody has.
  ///   errors   not_found (no GPU memory at that address), invalid_argument (of another GPU than was said),
  ///            exhausted, and those of Gpus::open
  [[nodiscard]] static Result<RegisteredMemory> find(Gpus& gpus, int device, cuda::Address address,
                                                     std::uint64_t bytes);

  [[nodiscard]] const std::shared_ptr<const WorkingGpu>& gpu() const noexcept { return gpu_; }
  /// Which memory it is. The same number from two of them means the same pieces.
  [[nodiscard]] std::uint64_t buffers() const noexcept { return buffers_; }

  /// Whether all of it is still the memory that was registered: some calls of the driver for each piece.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged(std::uint32_t region_id) const;
  /// The same of its first byte alone: one call.
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
