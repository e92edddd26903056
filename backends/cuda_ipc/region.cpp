// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/region.hpp"

#include "gpu/allocation_info.hpp"

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
    HEADRACE_TRY_VOID(region->be_of_gpu(gpus, args));
  } else if (args.memory_fd >= 0) {
    region->memory_fd_.reset(::fcntl(args.memory_fd, F_DUPFD_CLOEXEC, 0));
    region->memory_offset_ = args.memory_offset;
    if (!region->memory_fd_) return os_error(errno, "keep the memory file of region {}", args.region_id);
  }
  return region;
}

Result<void> Region::be_of_gpu(Gpus& gpus, const headrace_region_v1& args) {
  HEADRACE_TRY(gpu, gpus.open(args.device));
  HEADRACE_TRY(info, gpu::describe_allocation(*gpu->device, args.address));
  if (!info.on_device || info.device != args.device)
    return make_error(Code::invalid_argument, "address {:#x} was said to be memory of GPU {}, and is {} {}",
                      args.address, args.device,
                      info.on_device ? "memory of GPU" : "host memory, reachable by GPU", info.device);
  HEADRACE_TRY(buffers, gpu::identify_buffers(*gpu->device, args.address, args.length));
  gpu_ = std::move(gpu);
  buffers_ = buffers;
  return {};
}

Result<void> Region::check_unchanged() const {
  if (gpu_ == nullptr) return {};
  HEADRACE_TRY(buffers, gpu::identify_buffers(*gpu_->device, address_, length_));
  if (buffers == buffers_) return {};
  return make_error(Code::not_found,
                    "region {}: the {} bytes at {:#x} of GPU {} were freed, and other memory has their "
                    "address now: register "
                    "it again",
                    id_, length_, address_, gpu_->device->ordinal());
}

Result<cuda::Address> Region::reach(const WorkingGpu& gpu) const {
  if (gpu_ == nullptr) return pin(gpu);
  HEADRACE_TRY_VOID(gpu::enable_peer_access(*gpu.device, *gpu_->device));
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
