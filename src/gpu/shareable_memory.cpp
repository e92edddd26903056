// SPDX-License-Identifier: Apache-2.0
#include "gpu/shareable_memory.hpp"

#include "gpu/stream.hpp"

namespace headrace::gpu {

Result<ShareableMemory> ShareableMemory::allocate(std::shared_ptr<const Device> device, std::size_t bytes) {
  if (bytes == 0) return make_error(Code::invalid_argument, "0 bytes of GPU memory were asked for");
  if (!device->info().shares_descriptors)
    return make_error(Code::not_supported,
                      "GPU {} ({}) exports no memory as a descriptor, so others cannot map its memory",
                      device->ordinal(), device->info().name);
  ShareableMemory memory(std::move(device));
  const ContextGuard guard(*memory.device_);
  HEADRACE_TRY_VOID(memory.map(bytes));
  HEADRACE_TRY_VOID(memory.clear());
  return memory;
}

Result<void> ShareableMemory::map(std::size_t bytes) {
  const cuda::DriverTable& driver = device_->driver();
  const int ordinal = device_->ordinal();
  cuda::AllocationProperties properties;
  properties.handle_types = cuda::HandleType::file_descriptor;
  properties.location = {cuda::LocationType::device, ordinal};
  std::size_t step = 0;
  HEADRACE_CUDA_TRY(driver,
                    driver.mem_get_allocation_granularity(&step, &properties, cuda::Granularity::recommended),
                    "ask for the sizes of physical memory of GPU {}", ordinal);
  bytes_ = (bytes + step - 1) / step * step;
  HEADRACE_CUDA_TRY(driver, driver.mem_address_reserve(&address_, bytes_, 0, 0, 0),
                    "reserve an address range of {} bytes on GPU {}", bytes_, ordinal);
  cuda::PhysicalMemory physical = 0;
  HEADRACE_CUDA_TRY(driver, driver.mem_create(&physical, bytes_, &properties, 0),
                    "allocate {} bytes on GPU {}", bytes_, ordinal);
  const cuda::Outcome mapped = driver.mem_map(address_, bytes_, 0, physical, 0);
  (void)driver.mem_release(physical);  // the mapping holds it
  HEADRACE_CUDA_TRY(driver, mapped, "map {} bytes on GPU {}", bytes_, ordinal);
  is_mapped_ = true;
  const cuda::AccessDescription access{properties.location, cuda::AccessFlags::read_write};
  HEADRACE_CUDA_TRY(driver, driver.mem_set_access(address_, bytes_, &access, 1),
                    "let GPU {} reach {} bytes of its memory", ordinal, bytes_);
  return {};
}

Result<void> ShareableMemory::clear() const {
  HEADRACE_TRY(stream, Stream::make(device_));
  const cuda::DriverTable& driver = device_->driver();
  HEADRACE_CUDA_TRY(driver, driver.memset_d8_async(address_, 0, bytes_, stream.handle()),
                    "fill {} bytes of GPU {} with zeros", bytes_, device_->ordinal());
  return stream.wait_idle();
}

ShareableMemory::~ShareableMemory() {
  if (address_ == 0) return;
  const ContextGuard guard(*device_);
  const cuda::DriverTable& driver = device_->driver();
  if (is_mapped_) (void)driver.mem_unmap(address_, bytes_);
  (void)driver.mem_address_free(address_, bytes_);
}

}  // namespace headrace::gpu
