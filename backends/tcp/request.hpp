// SPDX-License-Identifier: Apache-2.0
// What `prepare` gives out: a request to a peer.
#pragma once

#include "backends/tcp/regions.hpp"
#include "memory/page_cursor.hpp"
#include "transport/message_outbox.hpp"

#include <headrace/plugin/backend.hpp>

#include <memory>
#include <string>

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
class RemoteRequest {
 public:
  RemoteRequest(const headrace_prepare_v1& prepared, std::shared_ptr<Link> to)
      : args(prepared), link(std::move(to)), gpu(find_gpu(*prepared.local)) {}

  Status post(const headrace_post_v1& how);
  bool poll();
  void cancel();

  [[nodiscard]] bool is_write() const { return args.op == HEADRACE_WRITE; }
  [[nodiscard]] bool of_gpu() const { return gpu != nullptr; }

  const headrace_prepare_v1 args;
  const std::shared_ptr<Link> link;
  const std::shared_ptr<const gpu::WorkingGpu> gpu;  ///< null: the local side is host memory

  bool posted = false;
  std::uint64_t token = 0;  // of the present post
  bool cut_all = false;     // no chunk is left to be cut
  bool canceling = false;
  std::uint64_t cancel_ns = 0;
  std::uint64_t wire_id = 0;      // of this post
  std::uint64_t uncut_bytes = 0;  // not yet in a chunk
  PagePosition next;              // where the next chunk begins
  std::uint32_t chunks = 0;       // cut so far
  std::uint32_t unanswered = 0;   // of them
  unsigned last_channel = 0;      // that took a chunk
  Status status;                  // the first error
  std::string text;
  std::shared_ptr<transport::OutMessage> message;
};

}  // namespace headrace::tcp
