// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/regions.hpp"

#include "base/errors.hpp"

#include <fcntl.h>

#include <mutex>

namespace headrace::fake {
namespace {

Result<std::shared_ptr<Region>> describe(const headrace_region_v1& args) {
  if (args.kind != HEADRACE_DRAM)
    return make_error(Code::not_supported, "fake takes host memory only, region {} is of kind {}",
                      args.region_id, args.kind);
  if (args.address == 0 || args.length == 0 || args.address > UINT64_MAX - args.length)
    return make_error(Code::invalid_argument, "region {}: {} bytes at {:#x} are no memory", args.region_id,
                      args.length, args.address);
  auto made = std::make_shared<Region>();
  made->id = args.region_id;
  made->base = reinterpret_cast<std::byte*>(args.address);
  made->length = args.length;
  made->writable = (args.flags & HEADRACE_REGION_READ_ONLY) == 0;
  if (args.memory_fd < 0) return made;
  made->memory_fd = UniqueFd(::fcntl(args.memory_fd, F_DUPFD_CLOEXEC, 0));
  if (!made->memory_fd) return os_error(errno, "keep the descriptor of region {}", args.region_id);
  made->memory_offset = args.memory_offset;
  return made;
}

}  // namespace

Result<Region*> Regions::add(const headrace_region_v1& args) {
  HEADRACE_TRY(made, describe(args));
  const Lock lock(network_.mutex);
  if (!by_id_.emplace(made->id, made).second)
    return make_error(Code::invalid_argument, "region {} is registered already: ids are never used twice",
                      args.region_id);
  return handles_.add(std::move(made));
}

void Regions::remove(Region& handle) {
  std::shared_ptr<Region> region;
  {
    const Lock lock(network_.mutex);
    region = handles_.get(handle);
    by_id_.erase(region->id);
    handles_.drop(handle);
  }
  const std::unique_lock alone(region->gate);  // waits for peers that are in the memory now
  region->gone = true;
}

std::shared_ptr<Region> Regions::find(std::uint32_t id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() ? found->second : nullptr;
}

}  // namespace headrace::fake
