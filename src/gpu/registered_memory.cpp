// SPDX-License-Identifier: Apache-2.0
#include "gpu/registered_memory.hpp"

#include "gpu/allocation_info.hpp"

namespace headrace::gpu {

Result<RegisteredMemory> RegisteredMemory::find(Gpus& gpus, int device, cuda::Address address,
                                                std::uint64_t bytes) {
  HEADRACE_TRY(gpu, gpus.open(device));
  HEADRACE_TRY(info, describe_allocation(*gpu->device, address));
  if (!info.on_device || info.device != device)
    return make_error(Code::invalid_argument,
                      "address {:#x} was registered as memory of GPU {}, and is {} {}", address, device,
                      info.on_device ? "memory of GPU" : "host memory, reachable by GPU", info.device);
  HEADRACE_TRY(buffers, identify_buffers(*gpu->device, address, bytes));
  RegisteredMemory memory;
  memory.gpu_ = std::move(gpu);
  memory.address_ = address;
  memory.bytes_ = bytes;
  memory.buffers_ = buffers;
  memory.first_buffer_ = info.buffer_id;
  return memory;
}

Result<void> RegisteredMemory::check_unchanged(std::uint32_t region_id) const {
  HEADRACE_TRY(buffers, identify_buffers(*gpu_->device, address_, bytes_));
  if (buffers == buffers_) return {};
  return make_error(Code::not_found,
                    "region {}: the {} bytes at {:#x} of GPU {} were freed, and other memory has this "
                    "address now: register it again",
                    region_id, bytes_, address_, gpu_->device->ordinal());
}

bool RegisteredMemory::begins_as_before() const {
  unsigned long long buffer = 0;
  const cuda::Outcome outcome =
      gpu_->device->driver().pointer_get_attribute(&buffer, cuda::PointerAttribute::buffer_id, address_);
  return outcome == cuda::Outcome::success && buffer == first_buffer_;
}

}  // namespace headrace::gpu
