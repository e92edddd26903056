// SPDX-License-Identifier: Apache-2.0
#include "gpu/region.hpp"

#include <utility>

namespace headrace::gpu {

Region::Region(const headrace_region_v1& args, bool pins, std::optional<RegisteredMemory> memory)
    : memory_(std::move(memory)),
      id_(args.region_id),
      address_(args.address),
      length_(args.length),
      read_only_((args.flags & HEADRACE_REGION_READ_ONLY) != 0),
      pins_(pins || args.memory_fd >= 0) {}

Result<std::optional<RegisteredMemory>> Region::find_memory(Gpus& gpus, const headrace_region_v1& args) {
  if (args.kind != HEADRACE_VRAM) return std::optional<RegisteredMemory>();
  HEADRACE_TRY(memory, RegisteredMemory::find(gpus, args.device, args.address, args.length));
  return std::optional(std::move(memory));
}

Result<void> Region::check_unchanged() const {
  return memory_ ? memory_->check_unchanged(id_) : Result<void>();
}

Result<cuda::Address> Region::reach(const WorkingGpu& gpu) const {
  if (!memory_) return pin(gpu);
  HEADRACE_TRY_VOID(enable_peer_access(*gpu.device, *memory_->gpu()->device));
  return address_;
}

Result<cuda::Address> Region::pin(const WorkingGpu& gpu) const {
  if (!pins_)
    return make_error(Code::not_supported,
                      "region {} is host memory that GPUs cannot reach: the option pin_registered is off",
                      id_);
  const std::scoped_lock lock(mutex_);
  if (!pinned_) {
    const auto access = read_only_ ? PinAccess::read : PinAccess::read_write;
    pinned_.emplace(PinnedMemory::pin(gpu.device, {reinterpret_cast<std::byte*>(address_), length_}, access));
  }
  if (*pinned_) return (*pinned_)->address();
  return make_error(Code::not_supported, "region {} is host memory that GPUs cannot reach: {}", id_,
                    pinned_->error().message);
}

}  // namespace headrace::gpu
