// SPDX-License-Identifier: Apache-2.0
// The links of an agent to its peers, by the token that backends name them with.
#pragma once

#include "base/log.hpp"
#include "engine/peer_life.hpp"
#include "engine/progress.hpp"
#include "telemetry/telemetry.hpp"

#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::engine {

/// A part of the engine that must know of every link. Each function may run inside a backend's call, except
/// `link_gone`.
class LinkWatcher {
 public:
  /// It is in the table. Its connection may still be in the making.
  virtual void link_added(const std::shared_ptr<Link>& /*link*/) {}
  /// No new post uses it; it will be closed soon.
  virtual void link_lost(const std::shared_ptr<Link>& /*link*/) {}
  /// It is closed and no longer in the table.
  virtual void link_gone(const std::shared_ptr<Link>& /*link*/) {}
  /// It ended before these messages could be sent. A lock of a life's `connecting` may be held.
  virtual void messages_left(const std::shared_ptr<Link>& /*link*/,
                             const std::vector<LinkQueue::Message>& /*left*/) {}
  /// It is closed with so many messages in its backend that have not left.
  virtual void messages_cut_off(const std::shared_ptr<Link>& /*link*/, std::uint64_t /*count*/) {}

 protected:
  ~LinkWatcher() = default;
};

class Links {
 public:
  Links(Progress& progress, Telemetry& telemetry, const Log& log)
      : progress_(progress), telemetry_(telemetry), log_(log) {}
  /// Before the first link. `watcher` outlives every link.
  void watch(LinkWatcher& watcher) { watchers_.push_back(&watcher); }

  [[nodiscard]] std::shared_ptr<Link> find(std::uint64_t token) const;
  [[nodiscard]] std::vector<std::shared_ptr<Link>> all() const;

  /// A link over this backend, made now if there is none. Not from inside a backend's call.
  Result<std::shared_ptr<Link>> to(const std::shared_ptr<PeerLife>& life, BackendInstance& backend);
  /// A link that the peer has made; it is ready.
  std::shared_ptr<Link> accepted(const std::shared_ptr<PeerLife>& life, BackendInstance& backend,
                                 void* connection);
  /// What the backend says of the link with this token.
  void event(std::uint64_t token, headrace_link_event_v1 event, Status status, std::string_view text);
  /// No new post uses it; it is closed soon, which ends what is in flight. Calls no backend.
  void lose(const std::shared_ptr<Link>& link, Status status, std::string_view why);
  /// Closes a link whose request did not end within the second that canceling may take.
  void kill(const std::shared_ptr<Link>& link, std::string_view why);
  /// Closes it now.
  void end(const std::shared_ptr<Link>& link);
  /// Messages that another link to the same peer left go over this one, in their order. False: it has ended.
  [[nodiscard]] bool adopt(const std::shared_ptr<Link>& link, std::vector<LinkQueue::Message>& left);
  /// Lets the messages leave, for a second at most, tells every peer that this agent ends, and closes all
  /// links. No post is in flight.
  void close();

 private:
  void add(const std::shared_ptr<Link>& link, PeerLife& life);
  std::shared_ptr<Link> make(const std::shared_ptr<PeerLife>& life, BackendInstance& backend);
  void ready(const std::shared_ptr<Link>& link);
  void begin_handing_over(const std::shared_ptr<Link>& link);
  void hand_over(const std::shared_ptr<Link>& link);
  void hand_over_messages(const std::shared_ptr<Link>& link);
  static void hand_over_channel(Link& link, std::uint32_t channel, std::vector<LinkQueue::Message>& left);
  void give_up(const std::shared_ptr<Link>& link);
  void let_messages_leave(Deadline deadline) const;
  void count_what_is_cut_off(const std::shared_ptr<Link>& link);
  void lost_by_backend(const std::shared_ptr<Link>& link, Status status, std::string_view text);

  Progress& progress_;
  Telemetry& telemetry_;
  const Log& log_;
  std::vector<LinkWatcher*> watchers_;

  mutable std::shared_mutex mutex_;  ///< guards the next two
  std::unordered_map<std::uint64_t, std::shared_ptr<Link>> links_;
  std::uint64_t next_token_ = 1;
};

}  // namespace headrace::engine
