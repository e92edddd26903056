// SPDX-License-Identifier: Apache-2.0
// The requests of an agent, from make_request until the backend has its own back.
#pragma once

#include "base/random.hpp"
#include "engine/call_gate.hpp"
#include "engine/counters.hpp"
#include "engine/request_core.hpp"
#include "engine/request_group.hpp"
#include "memory/index_pool.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace headrace::engine {

class Requests {
 public:
  /// Requests keep `engine` alive, and so this object and what is in `context`.
  /// `check_overlap`: refuse requests whose destinations overlap.
  Requests(const std::weak_ptr<const void>& engine, const RequestContext& context, bool check_overlap)
      : engine_(engine), context_(context), check_overlap_(check_overlap) {}

  Result<std::shared_ptr<RequestCore>> make(RequestPlan plan);
  /// One request of several parts, to a peer each; of one part: that part.
  Result<std::shared_ptr<Transfer>> make_of_parts(std::vector<RequestPlan> plans);
  IndexPool& index_pool() { return index_pool_; }

  /// Cancels every request, because the agent closes, and waits for their ends, 5 s at most.
  void cancel_all();
  /// Gives back what the backends hold. False if a post is still under way.
  bool release_all();
  /// Deletes what waits for deletion, while a thread still runs progress. Later ones are deleted at once.
  void end_what_was_let_go();

  /// A backend's word that the post with this token has ended. One that comes late or twice is counted and
  /// ignored. Calls no backend.
  void completed(std::uint64_t token, Status status, std::string_view text);

  // --- for requests

  /// A request is being destroyed.
  void forget(RequestCore& core, RequestPlan& plan);
  /// A post ended, `took_ns` after it began.
  void count_end(const RequestPlan& plan, Status status, std::uint64_t took_ns) const;
  /// Deletes what may hold a backend's handle or the caller's callback: soon, if a backend is inside one of
  /// our functions.
  template <class Held>
  void let_go(Held* held) {
    if (!BackendInstance::is_telling()) return delete held;
    let_go_later([held] { delete held; });
  }

 private:
  [[nodiscard]] std::vector<std::shared_ptr<RequestCore>> all() const;
  void let_go_later(std::function<void()> end);

  const std::weak_ptr<const void>& engine_;
  const RequestContext context_;
  const bool check_overlap_;
  PostSlots slots_;
  IndexPool index_pool_;
  /// Random at first: who does not get our messages cannot tell which ids they have. Never 0.
  std::atomic<std::uint64_t> next_id_{random_u64() / 2 + 1};

  mutable std::mutex mutex_;
  std::unordered_set<RequestCore*> known_;
  std::mutex let_go_mutex_;
  bool nobody_drives_ = false;  ///< what is let go of from now on holds no backend's handle
};

}  // namespace headrace::engine
