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
  HEADRACE_TRY(identity, MemoryIdentity::of(gpu->device, address, bytes));
  return RegisteredMemory(std::move(gpu), std::move(identity));
}

Result<void> RegisteredMemory::check_unchanged(std::uint32_t region_id) const {
  auto unchanged = identity_.check_unchanged();
  if (unchanged) return {};
  return std::move(unchanged).error().within(fmt::format("region {}", region_id));
}

}  // namespace headrace::gpu
