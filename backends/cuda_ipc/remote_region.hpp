// SPDX-License-Identifier: Apache-2.0
// What stands on the remote side of a request: a peer's region.
#pragma once

#include "backends/cuda_ipc/link.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace headrace::cuda_ipc {

/// A handle of the host's.
///   threads  any
class RemoteRegion {
 public:
  RemoteRegion(std::shared_ptr<Link> link, const headrace_remote_region_v1& told);

  [[nodiscard]] bool is_of_gpu() const { return of_gpu_; }
  /// A peer's GPU memory: the mark of its GPU, 0 if the peer does not tell.
  [[nodiscard]] std::uint32_t gpu_mark() const { return gpu_mark_; }
  [[nodiscard]] Link& link() const { return *link_; }
  [[nodiscard]] PeerRegion& peer() const { return *peer_; }
  [[nodiscard]] std::uint64_t length() const { return length_; }

  /// Where GPU `device` of ours reaches it, looked up in the link. Does not wait. What the metadata and the
  /// owner say of its length must agree.
  [[nodiscard]] PeerRegion::Found reach(int device) const;
  /// Looks it up in the owner's table of live regions, which is there once the link was ready.
  void find_slot() const;

  /// The region as memory of a GPU of ours, until `unmap`, whatever becomes of link and owner.
  ///   errors   would_block (the owner's answer is on its way), not_supported (no way, or read-only),
  ///            not_found
  [[nodiscard]] Result<cuda::Address> map(const WorkingGpu& gpu, bool writes);
  /// The last one of an address waits until the GPU has done what is queued on it; where it cannot, the
  /// memory stays mapped for good.
  void unmap(cuda::Address address);

 private:
  struct Mapped {
    std::shared_ptr<const gpu::Device> device;
    ImportedMemory memory;
    std::uint32_t count = 0;
  };
  [[nodiscard]] Result<ImportedMemory> mappable(const WorkingGpu& gpu) const;

  const std::shared_ptr<Link> link_;
  const std::shared_ptr<PeerRegion> peer_;
  const std::uint64_t length_;
  const bool of_gpu_;  // else the host's
  std::uint32_t gpu_mark_ = 0;
  std::mutex mutex_;
  std::map<cuda::Address, Mapped> mapped_;
};

}  // namespace headrace::cuda_ipc
