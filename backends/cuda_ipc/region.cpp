// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/region.hpp"

#include <fcntl.h>

namespace headrace::cuda_ipc {

Result<std::unique_ptr<Region>> Region::make(Gpus& gpus, const headrace_region_v1& args, bool pins) {
  std::unique_ptr<Region> region(new Region);
  region->id_ = args.region_id;
  region->address_ = args.address;
  region->length_ = args.length;
  region->pins_ = pins || args.memory_fd >= 0;
  region->read_only_ = (args.flags & HEADRACE_REGION_READ_ONLY) != 0;
  if (args.kind == HEADRACE_VRAM) {
    HEADRACE_TRY(memory, gpu::RegisteredMemory::find(gpus, args.device, args.address, args.length));
    region->memory_.emplace(std::move(memory));
  } else if (args.memory_fd >= 0) {
    region->memory_fd_.reset(::fcntl(args.memory_fd, F_DUPFD_CLOEXEC, 0));
    region->memory_offset_ = args.memory_offset;
    if (!region->memory_fd_) return os_error(errno, "keep the memory file of region {}", args.region_id);
  }
  return region;
}

Result<void> Region::check_unchanged() const {
  return memory_ ? memory_->check_unchanged(id_) : Result<void>();
}

Result<cuda::Address> Region::reach(const WorkingGpu& gpu) const {
  if (!memory_) return pin(gpu);
  HEADRACE_TRY_VOID(gpu::enable_peer_access(*gpu.device, *memory_->gpu()->device));
  return address_;
}

Result<cuda::Address> Region::pin(const WorkingGpu& gpu) const {
  if (!pins_)
    return make_error(
        Code::not_supported,
        "region {} is host memory that GPUs cannot reach: the option cuda_ipc.pin_registered is off", id_);
  const std::scoped_lock lock(mutex_);
  if (!pinned_) {
    const auto access = read_only_ ? gpu::PinAccess::read : gpu::PinAccess::read_write;
    pinned_.emplace(
        gpu::PinnedMemory::pin(gpu.device, {reinterpret_cast<std::byte*>(address_), length_}, access));
  }
  if (*pinned_) return (*pinned_)->address();
  return make_error(Code::not_supported, "region {} is host memory that GPUs cannot reach: {}", id_,
                    pinned_->error().message);
}

}  // namespace headrace::cuda_ipc
