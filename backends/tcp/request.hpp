// SPDX-License-Identifier: Apache-2.0
// What `prepare` gives out: a request to a peer, or to ourselves.
#pragma once

#include "backends/tcp/message_outbox.hpp"
#include "backends/tcp/regions.hpp"
#include "memory/page_cursor.hpp"

#include <headrace/plugin/backend.hpp>

#include <algorithm>
#include <memory>
#include <string>

namespace headrace::tcp {

class Link;

/// What `load_remote` and `load_local` give out.
struct RemoteRegion {
  std::shared_ptr<Link> link;     ///< null: our own
  const Region* local = nullptr;  ///< our own
  std::uint32_t id = 0;
};

/// Whether some of a local side, whose handles are Region, is GPU memory.
inline bool touches_gpu(const headrace_side_v1& side) {
  const auto of_gpu = [](void* handle) { return static_cast<const Region*>(handle)->of_gpu(); };
  return std::any_of(side.regions, side.regions + side.region_count, of_gpu);
}

class Request {
 public:
  explicit Request(const headrace_prepare_v1& prepared) : args(prepared) {}
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  virtual Status post(const headrace_post_v1& how) = 0;
  virtual bool poll() = 0;
  virtual void cancel() = 0;

  const headrace_prepare_v1 args;
};

/// A request to a peer. All that changes is guarded by the link's lock.
class RemoteRequest final : public Request {
 public:
  RemoteRequest(const headrace_prepare_v1& prepared, std::shared_ptr<Link> to)
      : Request(prepared), link(std::move(to)), of_gpu(touches_gpu(*prepared.local)) {}

  Status post(const headrace_post_v1& how) override;
  bool poll() override;
  void cancel() override;

  [[nodiscard]] bool is_write() const { return args.op == HEADRACE_WRITE; }

  const std::shared_ptr<Link> link;
  const bool of_gpu;  ///< some of the local side is GPU memory

  bool posted = false;
  bool cut_all = false;     // no chunk is left to be cut
  bool canceling = false;
  std::uint64_t cancel_ns = 0;
  std::uint64_t wire_id = 0;     // of this post
  PagePosition next;             // where the next chunk begins
  std::uint32_t chunks = 0;      // cut so far
  std::uint32_t unanswered = 0;  // of them
  unsigned last_channel = 0;     // that took a chunk
  Status status;                 // the first error
  std::string text;
  std::shared_ptr<OutMessage> message;
};

}  // namespace headrace::tcp
