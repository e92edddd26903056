// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/regions.hpp"

#include "backends/shm/link.hpp"
#include "base/errors.hpp"

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

/// Under `mutex_`.
void RemoteRegion::find_slot() {
  if (slot_.load(std::memory_order_acquire) != nullptr || contradicted_.load(std::memory_order_relaxed))
    return;
  const auto entry = link_->live_entry(region_id_);
  if (!entry) return;  // it stays unknown, and a copy that needs it is told so
  const auto place = entry->registered_at();
  if (place && *place != host_link::RegionPlace{owner_address_, length_bytes_}) {
    owners_word_ = *place;
    contradicted_.store(true, std::memory_order_release);
    return;
  }
  // One that is not registered yet would be reached unchecked once it is.
  const bool gone =
      entry->slot->load(std::memory_order_acquire) == static_cast<std::uint8_t>(RegionState::gone);
  if (place || gone) slot_.store(entry->slot, std::memory_order_release);
}

std::optional<Error> RemoteRegion::contradiction() const {
  if (!contradicted_.load(std::memory_order_acquire)) return std::nullopt;
  return make_error(Code::corrupt,
                    "the metadata of peer {} says that region {} has {} bytes at {:#x}, and the peer says {} "
                    "bytes at {:#x}: nothing is moved; fetch its metadata from the peer itself",
                    link_->peer_name(), region_id_, length_bytes_, owner_address_, owners_word_.length_bytes,
                    owners_word_.base);
}

bool RemoteRegion::resolve() {
  if (mapped() != nullptr) return true;
  if (!link_->was_ready()) return false;
  if (slot_.load(std::memory_order_acquire) == nullptr) {
    const std::lock_guard lock(mutex_);
    find_slot();
  }
  if (slot_.load(std::memory_order_acquire) == nullptr) return true;
  if (state() != RegionState::allocated || !link_->maps()) return true;
  auto [known, import] = link_->import(region_id_);
  if (!known) return false;
  if (import == nullptr || import->bytes().size() < length_bytes_) return true;  // attach takes its place
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
