// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory_identity.hpp"

#include "gpu/allocation_info.hpp"

#include <utility>

namespace headrace::gpu {

Result<MemoryIdentity> MemoryIdentity::of(std::shared_ptr<const Device> device, cuda::Address address,
                                          std::uint64_t bytes) {
  HEADRACE_TRY(first, describe_allocation(*device, address));
  HEADRACE_TRY(buffers, identify_buffers(*device, address, bytes));
  MemoryIdentity identity;
  identity.device_ = std::move(device);
  identity.address_ = address;
  identity.bytes_ = bytes;
  identity.buffers_ = buffers;
  identity.first_buffer_ = first.buffer_id;
  return identity;
}

Result<void> MemoryIdentity::check_unchanged() const {
  HEADRACE_TRY(buffers, identify_buffers(*device_, address_, bytes_));
  if (buffers == buffers_) return {};
  return make_error(Code::not_found,
                    "the {} bytes at {:#x} of GPU {} were freed, and other memory has this address now: "
                    "register it again",
                    bytes_, address_, device_->ordinal());
}

bool MemoryIdentity::begins_as_before() const {
  unsigned long long buffer = 0;
  const cuda::Outcome outcome =
      device_->driver().pointer_get_attribute(&buffer, cuda::PointerAttribute::buffer_id, address_);
  return outcome == cuda::Outcome::success && buffer == first_buffer_;
}

}  // namespace headrace::gpu
