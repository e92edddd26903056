// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_memory.hpp"

namespace headrace::gpu {

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<const Device> device, std::size_t bytes) {
  const cuda::DriverTable& driver = device->driver();
  const ContextGuard guard(*device);
  cuda::Address address = 0;
  HEADRACE_CUDA_TRY(driver, driver.mem_alloc(&address, bytes), "allocate {} bytes on GPU {}", bytes,
                    device->ordinal());
  return DeviceMemory(std::move(device), address, bytes);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  free();
  device_ = std::move(other.device_);
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceMemory::free() noexcept {
  if (address_ == 0) return;
  const ContextGuard guard(*device_);
  (void)device_->driver().mem_free(address_);
}

}  // namespace headrace::gpu
