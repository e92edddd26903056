// SPDX-License-Identifier: Apache-2.0
#include "gpu/pinned_memory.hpp"

#include <cstring>

namespace headrace::gpu {

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<const Device> device, std::size_t bytes) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  void* host = nullptr;
  HEADRACE_CUDA_TRY(
      driver, driver.mem_host_alloc(&host, bytes, cuda::host_alloc_portable | cuda::host_alloc_device_map),
      "allocate {} bytes of pinned host memory", bytes);
  std::memset(host, 0, bytes);
  PinnedMemory memory(std::move(device), {static_cast<std::byte*>(host), bytes}, Holding::allocated);
  HEADRACE_TRY_VOID(memory.find_address());
  return memory;
}

Result<PinnedMemory> PinnedMemory::pin(std::shared_ptr<const Device> device, std::span<std::byte> bytes,
                                       PinAccess access) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  unsigned flags = cuda::host_register_portable | cuda::host_register_device_map;
  if (access == PinAccess::read) flags |= cuda::host_register_read_only;
  const cuda::Outcome outcome = driver.mem_host_register(bytes.data(), bytes.size(), flags);
  const bool already = outcome == cuda::Outcome::host_memory_already_registered;
  PinnedMemory memory(std::move(device), bytes, already ? Holding::somebody_elses : Holding::pinned);
  if (outcome != cuda::Outcome::success && !(already && memory.is_pinned_whole())) {
    memory.bytes_ = {};  // nothing was pinned here, so nothing is released
    return cuda::driver_error(driver, outcome, "pin {} bytes of host memory at {}", bytes.size(),
                              static_cast<const void*>(bytes.data()));
  }
  HEADRACE_TRY_VOID(memory.find_address());
  return memory;
}

/// Finds its address on GPUs. The device's context must be current.
Result<void> PinnedMemory::find_address() {
  HEADRACE_CUDA_TRY(
      device_->driver(), device_->driver().mem_host_get_device_pointer(&address_, bytes_.data(), 0),
      "map {} bytes of host memory at {}", bytes_.size(), static_cast<const void*>(bytes_.data()));
  return {};
}

/// Whether GPUs see all of it in one range that was pinned in one call; then it does not matter by which
/// owner. Two ranges that were pinned apart, with a gap between them, look like one by their addresses.
bool PinnedMemory::is_pinned_whole() const {
  cuda::Address first = 0, last = 0;
  unsigned long long buffer_of_first = 0, buffer_of_last = 0;
  const cuda::DriverTable& driver = device_->driver();
  const auto pinned = [&](std::byte& byte, cuda::Address& address, unsigned long long& buffer) {
    return driver.mem_host_get_device_pointer(&address, &byte, 0) == cuda::Outcome::success &&
           driver.pointer_get_attribute(&buffer, cuda::PointerAttribute::buffer_id, address) ==
               cuda::Outcome::success;
  };
  return pinned(bytes_.front(), first, buffer_of_first) && pinned(bytes_.back(), last, buffer_of_last) &&
         last - first == bytes_.size() - 1 && buffer_of_first == buffer_of_last;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  device_ = std::move(other.device_);
  bytes_ = std::exchange(other.bytes_, {});
  address_ = std::exchange(other.address_, 0);
  holding_ = other.holding_;
  return *this;
}

void PinnedMemory::give_back() noexcept {
  if (bytes_.empty() || holding_ == Holding::somebody_elses) return;
  const ContextGuard guard(*device_);
  if (holding_ == Holding::allocated)
    (void)device_->driver().mem_free_host(bytes_.data());
  else
    (void)device_->driver().mem_host_unregister(bytes_.data());
}

}  // namespace headrace::gpu
