// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/region.hpp"

#include <fcntl.h>

#include <utility>

namespace headrace::cuda_ipc {

Result<std::unique_ptr<Region>> Region::make(Gpus& gpus, const headrace_region_v1& args, bool pins) {
  HEADRACE_TRY(memory, find_memory(gpus, args));
  std::unique_ptr<Region> region(new Region(args, pins, std::move(memory)));
  if (args.kind == HEADRACE_VRAM || args.memory_fd < 0) return region;
  region->memory_fd_.reset(::fcntl(args.memory_fd, F_DUPFD_CLOEXEC, 0));
  region->memory_offset_ = args.memory_offset;
  if (!region->memory_fd_) return os_error(errno, "keep the memory file of region {}", args.region_id);
  return region;
}

}  // namespace headrace::cuda_ipc
