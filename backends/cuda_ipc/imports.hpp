// SPDX-License-Identifier: Apache-2.0
// Memory of one peer that is open here: each allocation once for each of our GPUs, however many regions lie
// in it.
#pragma once

#include "backends/cuda_ipc/control_messages.hpp"
#include "gpu/gpus.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "host_link/memory_file.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cuda_ipc {

using gpu::WorkingGpu;

/// A stretch of a peer's memory as one of our GPUs reaches it. What holds it keeps the memory mapped.
struct ImportedMemory {
  std::shared_ptr<const void> mapping;  ///< none: memory of this process, at its own address
  cuda::Address address = 0;
  std::uint64_t bytes = 0;
};

/// An offer with the descriptors of its pieces, if it has any.
struct WholeOffer {
  Offer offer;
  std::vector<gpu::SharedMemory::Piece> pieces;
};

/// A peer's memory from `allocate`, mapped here and pinned.
class PinnedFile {
 public:
  ///   errors   corrupt (no sealed memory file), not_supported (cannot be pinned), exhausted
  [[nodiscard]] static Result<std::shared_ptr<const PinnedFile>> open(const WorkingGpu& gpu, int fd);
  PinnedFile(host_link::Mapping mapping, gpu::PinnedMemory pinned)
      : mapping_(std::move(mapping)), pinned_(std::move(pinned)) {}

  [[nodiscard]] cuda::Address address() const { return pinned_.address(); }
  [[nodiscard]] std::size_t size() const { return mapping_.size(); }

 private:
  host_link::Mapping mapping_;  // goes after the pin
  gpu::PinnedMemory pinned_;
};

/// The imports of one link. The memory stays mapped as long as somebody holds it.
///   threads  any; the last to hold a mapping unmaps it, which may take milliseconds
class Imports {
 public:
  /// Opens what was offered, or finds it open. May take milliseconds.
  ///   errors   not_found (freed in the meantime), not_supported (no way from this GPU, or handles of that
  ///            process do not work here), corrupt (the offer contradicts itself), exhausted, backend_failed
  [[nodiscard]] Result<ImportedMemory> open(const WorkingGpu& gpu, WholeOffer offered);
  /// For memory of this very process that has no pieces: nothing is mapped, it is made reachable.
  [[nodiscard]] static Result<ImportedMemory> reach(const WorkingGpu& gpu, const Offer& offer);

 private:
  using Key = std::pair<std::uint64_t, int>;  // allocation, our GPU

  [[nodiscard]] Result<std::shared_ptr<const gpu::PeerMemory>> map(const WorkingGpu& gpu, WholeOffer offered);
  [[nodiscard]] Result<ImportedMemory> open_file(const WorkingGpu& gpu, const WholeOffer& offered);
  [[nodiscard]] Result<void> prove(const WorkingGpu& gpu, const Offer& offer);

  std::mutex mutex_;
  std::map<Key, std::weak_ptr<const gpu::PeerMemory>> open_;
  std::map<std::uint64_t, std::weak_ptr<const PinnedFile>>
      open_files_;                                // by allocation; all our GPUs reach them
  std::set<std::pair<std::string, int>> proved_;  // GPU of the peer's, ours
};

}  // namespace headrace::cuda_ipc
