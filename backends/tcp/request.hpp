// SPDX-License-Identifier: Apache-2.0
// What `prepare` gives out: a request to a peer.
#pragma once

#include "backends/tcp/regions.hpp"
#include "transport/request.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>

namespace headrace::tcp {

class Link;

/// What `load_remote` gives out.
struct RemoteRegion {
  std::shared_ptr<Link> link;
  std::uint32_t id = 0;
};

/// The first GPU that memory of a local side is of, whose handles are Region; null: it is the host's alone.
inline std::shared_ptr<const gpu::WorkingGpu> find_gpu(const headrace_side_v1& side) {
  for (std::uint64_t i = 0; i < side.region_count; ++i)
    if (const Region& region = Handles::region(side.regions[i]); region.of_gpu()) return region.gpu->gpu();
  return nullptr;
}

/// A request to a peer. All that changes is guarded by the link's lock.
class RemoteRequest : public transport::Request {
 public:
  RemoteRequest(const headrace_prepare_v1& prepared, std::shared_ptr<Link> to)
      : Request(prepared), link(std::move(to)), gpu(find_gpu(*prepared.local)) {}

  [[nodiscard]] bool of_gpu() const { return gpu != nullptr; }

  const std::shared_ptr<Link> link;
  const std::shared_ptr<const gpu::WorkingGpu> gpu;  ///< null: the local side is host memory
  unsigned last_channel = 0;                         ///< that took a chunk
};

}  // namespace headrace::tcp
