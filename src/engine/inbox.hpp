// SPDX-License-Identifier: Apache-2.0
// Notifications that have come in and have not been taken yet: oldest first, bounded, each delivered once.
#pragma once

#include <headrace/agent.hpp>

#include "base/event_fd.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace headrace::engine {

/// Which message of which life of a peer this is: (0, 0) for those sent on their own.
struct MessageKey {
  std::uint64_t life = 0;  ///< PeerLife::serial: no number that a peer claims
  std::uint64_t request = 0;
  std::uint64_t post = 0;
};

class Inbox {
 public:
  Inbox(std::size_t capacity, std::size_t capacity_bytes)
      : capacity_(capacity), capacity_bytes_(capacity_bytes) {}

  /// False if it is full: the message is dropped, and counted by the caller. A message seen already is taken
  /// for delivered.
  bool put(const MessageKey& key, Notification notification);
  std::vector<Notification> take(const NotificationFilter& filter);
  std::optional<Notification> take_one(const NotificationFilter& filter);
  [[nodiscard]] bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  Result<int> descriptor();
  /// No message of this life comes any more.
  void forget(std::uint64_t life);

 private:
  /// The posts of one life of which a message has come.
  struct Seen {
    std::unordered_map<std::uint64_t, std::uint64_t> last_post;  // by request
    std::deque<std::uint64_t> requests;                          // oldest first, to forget them again
  };
  bool seen(const MessageKey& key);
  void quiet_if_empty();

  const std::size_t capacity_, capacity_bytes_;
  std::size_t bytes_ = 0;  // of the payloads that wait
  std::mutex mutex_;
  std::deque<Notification> messages_;
  std::unordered_map<std::uint64_t, Seen> seen_;  // by life
  std::optional<EventFd> bell_;
  std::atomic<std::size_t> waiting_{0};
};

}  // namespace headrace::engine
