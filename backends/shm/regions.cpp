// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/regions.hpp"

#include "backends/shm/link.hpp"

namespace headrace::shm {

RemoteRegion::RemoteRegion(std::shared_ptr<Link> link, std::uint32_t region_id, std::uint64_t owner_address,
                           std::uint64_t length_bytes)
    : link_(std::move(link)),
      region_id_(region_id),
      owner_address_(owner_address),
      length_bytes_(length_bytes) {}

RemoteRegion::RemoteRegion(const LocalRegion& region)
    : region_id_(region.region_id),
      owner_address_(reinterpret_cast<std::uintptr_t>(region.base)),
      length_bytes_(region.length_bytes),
      slot_(region.slot),
      mapped_(region.base) {}

bool RemoteRegion::resolve() {
  if (mapped() != nullptr) return true;
  if (!link_->was_ready()) return false;
  if (slot_.load(std::memory_order_acquire) == nullptr) {
    const auto slot = link_->live_slot(region_id_);
    if (!slot) return true;  // it stays unknown, and a copy that needs it is told so
    slot_.store(*slot, std::memory_order_release);
  }
  if (state() != RegionState::allocated || !link_->maps()) return true;
  auto [known, import] = link_->import(region_id_);
  if (!known) return false;
  if (import == nullptr || import->bytes().size() < length_bytes_)
    return true;  // or not what the metadata says: attach will see
  // An owner that calls a file writable which is sealed against it would have us die of the first write.
  if (writable() && !import->writable()) return true;
  const std::lock_guard lock(mutex_);
  if (import_ == nullptr) {
    import_ = std::move(import);
    mapped_.store(import_->bytes().data(), std::memory_order_release);
  }
  return true;
}

}  // namespace headrace::shm
