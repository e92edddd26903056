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
  PinnedMemory memory(std::move(device), {static_cast<std::byte*>(host), bytes}, 0, true);
  HEADRACE_CUDA_TRY(driver, driver.mem_host_get_device_pointer(&memory.address_, host, 0),
                    "map {} bytes of pinned host memory", bytes);
  return memory;
}

Result<PinnedMemory> PinnedMemory::pin(std::shared_ptr<const Device> device, std::span<std::byte> bytes) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  HEADRACE_CUDA_TRY(driver,
                    driver.mem_host_register(bytes.data(), bytes.size(),
                                             cuda::host_register_portable | cuda::host_register_device_map),
                    "pin {} bytes of host memory at {}", bytes.size(),
                    static_cast<const void*>(bytes.data()));
  PinnedMemory memory(std::move(device), bytes, 0, false);
  HEADRACE_CUDA_TRY(driver, driver.mem_host_get_device_pointer(&memory.address_, bytes.data(), 0),
                    "map {} bytes of host memory at {}", bytes.size(),
                    static_cast<const void*>(bytes.data()));
  return memory;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  device_ = std::move(other.device_);
  bytes_ = std::exchange(other.bytes_, {});
  address_ = std::exchange(other.address_, 0);
  ours_ = other.ours_;
  return *this;
}

void PinnedMemory::give_back() noexcept {
  if (bytes_.empty()) return;
  const ContextGuard guard(*device_);
  if (ours_)
    (void)device_->driver().mem_free_host(bytes_.data());
  else
    (void)device_->driver().mem_host_unregister(bytes_.data());
}

}  // namespace headrace::gpu
