// SPDX-License-Identifier: Apache-2.0
#include "fabric/host_block.hpp"

namespace headrace::fabric {

Result<HostBlock> HostBlock::make(const std::shared_ptr<const gpu::Device>& device, std::size_t bytes) {
  if (device == nullptr)
    return HostBlock(std::make_unique<Line[]>((bytes + sizeof(Line) - 1) / sizeof(Line)));
  HEADRACE_TRY(pinned, gpu::PinnedMemory::allocate(device, bytes));
  return HostBlock(std::move(pinned));
}

}  // namespace headrace::fabric
