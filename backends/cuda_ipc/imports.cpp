// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda_ipc/imports.hpp"

#include "backends/cuda_ipc/proof.hpp"

#include <algorithm>

namespace headrace::cuda_ipc {
namespace {

std::size_t total_bytes(const std::vector<gpu::SharedMemory::Piece>& pieces) {
  std::size_t total = 0;
  for (const auto& piece : pieces) total += piece.bytes;
  return total;
}

/// The whole allocation, or all pieces, so that other regions in it find it open.
gpu::SharedMemory whole(WholeOffer offered) {
  gpu::SharedMemory shared;
  if (offered.pieces.empty()) {
    shared.sharing = gpu::Sharing::ipc;
    shared.handle = offered.offer.handle;
    shared.bytes = offered.offer.offset + offered.offer.bytes;
    return shared;
  }
  shared.sharing = gpu::Sharing::descriptor;
  shared.bytes = total_bytes(offered.pieces);
  shared.pieces = std::move(offered.pieces);
  return shared;
}

}  // namespace

Result<std::shared_ptr<const PinnedFile>> PinnedFile::open(const WorkingGpu& gpu, int fd) {
  using host_link::Mapping;
  HEADRACE_TRY(file, host_link::inspect_memory_file(fd));
  const auto access = file.writable ? Mapping::Access::read_write : Mapping::Access::read;
  HEADRACE_TRY(mapping, Mapping::of_file(fd, 0, static_cast<std::size_t>(file.size_bytes), access));
  auto pinned = gpu::PinnedMemory::pin(gpu.device, {mapping.data(), mapping.size()},
                                       file.writable ? gpu::PinAccess::read_write : gpu::PinAccess::read);
  if (!pinned)
    return make_error(Code::not_supported, "host memory that GPUs cannot reach: {}", pinned.error().message);
  return std::make_shared<const PinnedFile>(std::move(mapping), std::move(*pinned));
}

Result<ImportedMemory> Imports::open(const WorkingGpu& gpu, WholeOffer offered) {
  const Offer offer = offered.offer;
  if (offer.bytes > UINT64_MAX - offer.offset ||
      (!offered.pieces.empty() && offer.offset + offer.bytes > total_bytes(offered.pieces)))
    return make_error(Code::corrupt, "region {} is said to be {} bytes at {} of {} pieces with {} bytes",
                      offer.region_id, offer.bytes, offer.offset, offered.pieces.size(),
                      total_bytes(offered.pieces));
  if (offer.is_host_memory()) return open_file(gpu, offered);
  // One lock over all: two regions of one allocation must not open it at once.
  const std::scoped_lock lock(mutex_);
  const Key key{offer.allocation, gpu.device->ordinal()};
  std::shared_ptr<const gpu::PeerMemory> mapping = open_[key].lock();
  if (mapping == nullptr) {
    HEADRACE_TRY(mapped, map(gpu, std::move(offered)));
    mapping = std::move(mapped);
    open_[key] = mapping;
  }
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  // Another offer may have opened it.
  if (offer.offset + offer.bytes > mapping->whole_bytes())
    return make_error(Code::corrupt, "region {} is said to be {} bytes at {} of an allocation of {}",
                      offer.region_id, offer.bytes, offer.offset, mapping->whole_bytes());
  const cuda::Address address = mapping->address() + offer.offset;
  return ImportedMemory{std::move(mapping), address, offer.bytes};
}

Result<ImportedMemory> Imports::open_file(const WorkingGpu& gpu, const WholeOffer& offered) {
  const Offer& offer = offered.offer;
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<const PinnedFile> file = open_files_[offer.allocation].lock();
  if (file == nullptr) {
    HEADRACE_TRY(opened, PinnedFile::open(gpu, offered.pieces.front().descriptor.get()));
    file = std::move(opened);
    open_files_[offer.allocation] = file;
  }
  std::erase_if(open_files_, [](const auto& entry) { return entry.second.expired(); });
  if (offer.offset + offer.bytes > file->size())
    return make_error(Code::corrupt, "region {} is said to be {} bytes at {} of a memory file of {}",
                      offer.region_id, offer.bytes, offer.offset, file->size());
  const cuda::Address address = file->address() + offer.offset;
  return ImportedMemory{std::move(file), address, offer.bytes};
}

Result<std::shared_ptr<const gpu::PeerMemory>> Imports::map(const WorkingGpu& gpu, WholeOffer offered) {
  if (offered.pieces.empty()) HEADRACE_TRY_VOID(prove(gpu, offered.offer));
  HEADRACE_TRY(opened, gpu::PeerMemory::open(gpu.device, whole(std::move(offered))));
  return std::shared_ptr<const gpu::PeerMemory>(std::make_shared<gpu::PeerMemory>(std::move(opened)));
}

Result<void> Imports::prove(const WorkingGpu& gpu, const Offer& offer) {
  const std::pair pair(offer.uuid, gpu.device->ordinal());
  if (proved_.contains(pair)) return {};
  HEADRACE_TRY_VOID(check_proof(gpu.device, gpu.mover->uploads, offer.proof, offer.nonce));
  proved_.insert(pair);
  return {};
}

Result<ImportedMemory> Imports::reach(const WorkingGpu& gpu, const Offer& offer) {
  HEADRACE_TRY(info, gpu::describe_allocation(*gpu.device, offer.address));
  HEADRACE_TRY(owner, gpu::Device::open(gpu.device->driver(), info.device));
  HEADRACE_TRY_VOID(gpu::enable_peer_access(*gpu.device, *owner));
  return ImportedMemory{nullptr, offer.address, offer.bytes};
}

}  // namespace headrace::cuda_ipc
