// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/remote_region.hpp"

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::cuda_ipc {
namespace {

/// Rather held to the end of the process than taken from under a kernel.
void keep_for_good(ImportedMemory memory) {
  static auto& mutex = *new std::mutex;  // neither goes before the last thread
  static auto& kept = *new std::vector<ImportedMemory>;
  const std::scoped_lock lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace

RemoteRegion::RemoteRegion(std::shared_ptr<Link> link, const headrace_remote_region_v1& told)
    : link_(std::move(link)),
      peer_(link_->region(told.region_id)),
      length_(told.length),
      of_gpu_(told.kind == HEADRACE_VRAM) {
  if (told.public_data.length == sizeof gpu_mark_)
    std::memcpy(&gpu_mark_, told.public_data.data, sizeof gpu_mark_);
}

PeerRegion::Found RemoteRegion::reach(int device) const {
  PeerRegion::Found found = link_->reach(*peer_, device);
  if (found.reach != PeerRegion::Reach::here || length_ <= found.memory.bytes) return found;
  return {PeerRegion::Reach::refused,
          {},
          make_error(Code::corrupt, "region {} of peer {} has {} bytes, and its metadata says {}",
                     peer_->id(), link_->peer_name(), found.memory.bytes, length_)};
}

void RemoteRegion::find_slot() const {
  if (peer_->has_slot() || !link_->was_ready()) return;
  if (const auto entry = link_->live_entry(peer_->id())) peer_->set_slot(entry->slot);
}

Result<ImportedMemory> RemoteRegion::mappable(const WorkingGpu& gpu) const {
  PeerRegion::Found found = reach(gpu.device->ordinal());
  if (found.reach == PeerRegion::Reach::here) return std::move(found.memory);
  if (found.reach == PeerRegion::Reach::refused) return std::move(found.error);
  if (found.reach == PeerRegion::Reach::by_owner)
    return make_error(
        Code::not_supported,
        "region {} of peer {} is host memory that was registered: GPUs of other processes map what "
        "`allocate` made",
        peer_->id(), link_->peer_name());
  if (link_->state() == host_link::LinkState::lost) return link_->why_lost().error();
  return make_error(Code::would_block, "peer {} has not said yet how region {} is reached",
                    link_->peer_name(), peer_->id());
}

Result<cuda::Address> RemoteRegion::map(const WorkingGpu& gpu, bool writes) {
  HEADRACE_TRY(memory, mappable(gpu));
  find_slot();
  if (writes && !peer_->writable())
    return make_error(Code::not_supported, "region {} is read-only: map it for reading", peer_->id());
  const cuda::Address address = memory.address;
  const std::scoped_lock lock(mutex_);
  Mapped& mapped = mapped_[address];
  mapped.device = gpu.device;
  mapped.memory = std::move(memory);
  ++mapped.count;
  return address;
}

void RemoteRegion::unmap(cuda::Address address) {
  Mapped last;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = mapped_.find(address);
    if (found == mapped_.end() || --found->second.count > 0) return;
    last = std::move(found->second);
    mapped_.erase(found);
  }
  // Its user's kernels are queued on streams that nobody here knows, and the driver takes memory of
  // descriptors away from under them. A GPU cannot be waited for while a stream of it is being captured.
  if (last.memory.mapping != nullptr && !last.device->wait_idle().ok()) keep_for_good(std::move(last.memory));
}

}  // namespace headrace::cuda_ipc
