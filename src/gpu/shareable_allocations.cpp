// SPDX-License-Identifier: Apache-2.0
#include "gpu/shareable_allocations.hpp"

namespace headrace::gpu {

Result<std::uint64_t> ShareableAllocations::allocate(int ordinal, std::size_t bytes) {
  HEADRACE_TRY(gpu, device(ordinal));
  HEADRACE_TRY(memory, ShareableMemory::allocate(std::move(gpu), bytes));
  const std::uint64_t address = memory.address();
  const std::lock_guard lock(mutex_);
  memories_.emplace(address, std::move(memory));
  return address;
}

Result<void> ShareableAllocations::free(std::uint64_t address) {
  std::unique_lock lock(mutex_);
  const auto ended = memories_.extract(address);
  lock.unlock();  // the driver may wait for kernels when the memory goes
  if (ended.empty())
    return make_error(Code::not_found, "no GPU memory was allocated at {:#x}, or it was freed already",
                      address);
  return {};
}

Result<std::shared_ptr<const Device>> ShareableAllocations::device(int ordinal) {
  const std::lock_guard lock(mutex_);
  auto& known = devices_[ordinal];
  if (known == nullptr) {
    HEADRACE_TRY(opened, open_(ordinal));
    known = std::move(opened);
  }
  return known;
}

}  // namespace headrace::gpu
