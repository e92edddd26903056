// SPDX-License-Identifier: Apache-2.0
// Shareable GPU memory that is known by its addresses, as allocators of other libraries want it.
#pragma once

#include "gpu/shareable_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace headrace::gpu {

///   threads  any
class ShareableAllocations {
 public:
  using Open = std::function<Result<std::shared_ptr<const Device>>(int ordinal)>;
  /// open: opens a GPU; called once for each.
  explicit ShareableAllocations(Open open) : open_(std::move(open)) {}

  /// The address of new memory.
  ///   errors   those of Device::open and ShareableMemory::allocate
  [[nodiscard]] Result<std::uint64_t> allocate(int ordinal, std::size_t bytes);
  /// Nothing of this process uses the memory any more.
  ///   errors   not_found (allocate has not returned this address, or it was freed)
  [[nodiscard]] Result<void> free(std::uint64_t address);

 private:
  [[nodiscard]] Result<std::shared_ptr<const Device>> device(int ordinal);

  const Open open_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<const Device>> devices_;
  std::map<std::uint64_t, ShareableMemory> memories_;  // by address
};

}  // namespace headrace::gpu
