// SPDX-License-Identifier: Apache-2.0
#include "backends/fake/remote_regions.hpp"

#include "backends/fake/link_end.hpp"
#include "base/errors.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace headrace::fake {
namespace {

/// With the network's lock held: the memory behind the handle, if it can be mapped now.
Result<std::shared_ptr<Region>> mappable(const RemoteRegion& remote) {
  if (remote.link) {
    const Status usable = remote.link->usable();
    if (usable.code == Code::would_block)
      return make_error(Code::would_block, "map region {}: its link is not ready yet", remote.region_id);
    if (!usable.ok()) return Error{usable.code, "map: " + remote.link->lost_text};
  }
  auto region = remote.find();
  if (!region)
    return make_error(Code::not_found, "map region {}: its owner does not have it any more",
                      remote.region_id);
  if (!region->memory_fd)
    return make_error(Code::not_supported,
                      "map region {}: only memory from allocate can be mapped, this was merely registered",
                      region->id);
  return region;
}

}  // namespace

std::shared_ptr<Region> RemoteRegion::find() const {
  if (own) return own;
  const auto other = link->other.lock();
  return other && other->state != LinkState::closed ? other->owner->regions.find(region_id) : nullptr;
}

RemoteRegions::~RemoteRegions() {
  for (const auto& [address, pages] : mappings_) ::munmap(pages.data(), pages.size());
}

RemoteRegion* RemoteRegions::load_local(const Region& region) {
  auto made = std::make_shared<RemoteRegion>();
  const Lock lock(here_.network.mutex);
  made->own = here_.regions.get(region);
  made->region_id = made->own->id;
  return handles_.add(std::move(made));
}

Result<RemoteRegion*> RemoteRegions::load_remote(const LinkEnd& link,
                                                 const headrace_remote_region_v1& region) {
  if (region.public_data.length != 0)
    return make_error(Code::corrupt,
                      "region {} comes with {} bytes of public data, a fake instance gives out none",
                      region.region_id, region.public_data.length);
  auto made = std::make_shared<RemoteRegion>();
  made->region_id = region.region_id;
  const Lock lock(here_.network.mutex);
  if (link.broken) return Error{link.lost_status.code, "load region: " + link.lost_text};
  made->link = here_.links.get(link);
  return handles_.add(std::move(made));
}

void RemoteRegions::unload(const RemoteRegion& remote) {
  const Lock lock(here_.network.mutex);
  handles_.drop(remote);
}

Result<std::span<std::byte>> RemoteRegions::map(const RemoteRegion& remote, int device, unsigned access) {
  if (device >= 0)
    return make_error(Code::not_supported, "fake maps for the CPU only, not for device {}", device);
  const Lock lock(here_.network.mutex);
  HEADRACE_TRY(region, mappable(remote));
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t skew = region->memory_offset % page;
  const std::uint64_t bytes = skew + region->length;
  const int protection = ((access & 1U) != 0 ? PROT_READ : 0) | ((access & 2U) != 0 ? PROT_WRITE : 0);
  void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, region->memory_fd.get(),
                          static_cast<off_t>(region->memory_offset - skew));
  if (at == MAP_FAILED) return os_error(errno, "map {} bytes of region {}", region->length, region->id);
  const std::span pages(static_cast<std::byte*>(at), bytes);
  const auto memory = pages.subspan(skew);
  mappings_.emplace(memory.data(), pages);
  return memory;
}

void RemoteRegions::unmap(void* address) {
  Lock lock(here_.network.mutex);
  const auto mapping = mappings_.extract(address);
  lock.unlock();
  ::munmap(mapping.mapped().data(), mapping.mapped().size());
}

}  // namespace headrace::fake
