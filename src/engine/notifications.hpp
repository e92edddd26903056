// SPDX-License-Identifier: Apache-2.0
// Notifications: sending those without a request, and what has come in for the caller.
#pragma once

#include <headrace/agent.hpp>

#include "base/once_a_second.hpp"
#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/callback_queue.hpp"
#include "engine/counters.hpp"
#include "engine/inbox.hpp"
#include "engine/peers.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

namespace headrace::engine {

class Notifications final : public LinkWatcher {
 public:
  Notifications(const Self& self, CallGate& calls, const Backends& backends, Links& links, const Peers& peers,
                Progress& progress, CallbackQueue& callbacks, EngineCounters& counters, const Log& log,
                InboxLimits limits)
      : self_(self),
        calls_(calls),
        backends_(backends),
        links_(links),
        peers_(peers),
        progress_(progress),
        callbacks_(callbacks),
        counters_(counters),
        log_(log),
        inbox_(limits) {}

  Result<void> send(std::string_view peer, std::string_view payload);

  /// A message of a peer over this link, as the wire has it. Calls no backend. False: the peer has sent far
  /// more than it may.
  [[nodiscard]] bool received(const PeerLife& from, std::uint64_t link, std::string_view bytes);
  /// The same of a message that was held for a time: its link may be gone.
  bool held(const PeerLife& from, std::uint64_t link, std::string_view bytes);
  /// A notification from this agent to itself.
  void received_from_self(std::string_view payload);
  std::vector<Notification> take(const NotificationFilter& filter);
  std::optional<Notification> take_one(const NotificationFilter& filter);
  /// Takes each notification on the callback thread; {} ends that.
  void on_notification(std::function<void(Notification)> taken);
  Inbox& inbox() { return inbox_; }
  /// Nothing of this life is kept any more.
  void forget(const PeerLife& life) { inbox_.forget(life.serial); }
  void link_gone(const std::shared_ptr<Link>& link) override;
  /// They go over the next backend that carries messages.
  void messages_left(const std::shared_ptr<Link>& link, const std::vector<LinkQueue::Message>& left) override;
  void messages_cut_off(const std::shared_ptr<Link>& link, std::uint64_t count) override;

 private:
  [[nodiscard]] std::vector<BackendInstance*> ways_to(const PeerLife& life) const;
  [[nodiscard]] Result<void> send_over_any(const std::shared_ptr<PeerLife>& life, std::string_view bytes);
  [[nodiscard]] Result<void> send_over(const PeerLife& life, Link& link, std::string_view bytes);
  void send_again(const std::shared_ptr<PeerLife>& life, const Link& lost,
                  std::vector<LinkQueue::Message>& messages);
  [[nodiscard]] std::shared_ptr<Link> another_link(const std::shared_ptr<PeerLife>& life,
                                                   BackendInstance& backend);
  void dropped(const Link& link, std::string_view peer, std::uint64_t count);
  [[nodiscard]] bool arrived(const Inbox::Receipt& receipt);
  void tell(const Inbox::Due& due);
  void hand_over();

  const Self& self_;
  CallGate& calls_;
  const Backends& backends_;
  Links& links_;
  const Peers& peers_;
  Progress& progress_;
  CallbackQueue& callbacks_;
  EngineCounters& counters_;
  const Log& log_;
  Inbox inbox_;
  OnceASecond says_dropped_;

  /// The caller's function for what comes in.
  struct Taker {
    std::function<void(Notification)> taken;
    std::atomic<bool> queued{false};  ///< a call is on its way: one takes all that waits by then
    std::atomic<bool> ended{false};
  };
  void queue(const std::shared_ptr<Taker>& taker);
  void run(const std::shared_ptr<Taker>& taker);

  std::mutex taker_mutex_;
  std::shared_ptr<Taker> taker_;
};

}  // namespace headrace::engine
