// SPDX-License-Identifier: Apache-2.0
// Registered memory of a GPU that moves pages of it.
#pragma once

#include "gpu/gpus.hpp"
#include "gpu/memory_identity.hpp"

#include <cstdint>
#include <memory>
#include <utility>

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
  [[nodiscard]] std::uint64_t buffers() const noexcept { return identity_.buffers(); }

  /// Checks that all of it is still the memory that was registered: some driver calls for each allocation.
  ///   errors   not_found
  [[nodiscard]] Result<void> check_unchanged(std::uint32_t region_id) const;
  /// The same for its first byte only: one driver call.
  [[nodiscard]] bool begins_as_before() const { return identity_.begins_as_before(); }

 private:
  RegisteredMemory(std::shared_ptr<const WorkingGpu> gpu, MemoryIdentity identity)
      : gpu_(std::move(gpu)), identity_(std::move(identity)) {}

  std::shared_ptr<const WorkingGpu> gpu_;
  MemoryIdentity identity_;
};

}  // namespace headrace::gpu
