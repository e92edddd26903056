// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/region.hpp"

#include "gpu/allocation_info.hpp"

namespace headrace::cuda_ipc {

Result<std::unique_ptr<Region>> Region::make(Gpus& gpus, const headrace_region_v1& args) {
  HEADRACE_TRY(gpu, gpus.open(args.device));
  HEADRACE_TRY(info, gpu::describe_allocation(*gpu->device, args.address));
  if (!info.on_device || info.device != args.device)
    return make_error(Code::invalid_argument, "address {:#x} was said to be memory of GPU {}, and is {} {}",
                      args.address, args.device,
                      info.on_device ? "memory of GPU" : "host memory, reachable by GPU", info.device);
  HEADRACE_TRY(buffers, gpu::identify_buffers(*gpu->device, args.address, args.length));
  std::unique_ptr<Region> region(new Region(std::move(gpu)));
  region->id_ = args.region_id;
  region->address_ = args.address;
  region->length_ = args.length;
  region->read_only_ = (args.flags & HEADRACE_REGION_READ_ONLY) != 0;
  region->buffers_ = buffers;
  return region;
}

Result<void> Region::check_unchanged() const {
  HEADRACE_TRY(buffers, gpu::identify_buffers(*gpu_->device, address_, length_));
  if (buffers == buffers_) return {};
  return make_error(Code::not_found,
                    "region {}: the {} bytes at {:#x} of GPU {} were freed, and other memory has their "
                    "address now: register "
                    "it again",
                    id_, length_, address_, gpu_->device->ordinal());
}

}  // namespace headrace::cuda_ipc
