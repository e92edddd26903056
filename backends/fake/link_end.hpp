// SPDX-License-Identifier: Apache-2.0
// One side's end of a link, and how it is lost.
#pragma once

#include "backends/fake/event.hpp"
#include "backends/fake/network.hpp"

#include <headrace/result.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace headrace::fake {

enum class LinkState : std::uint8_t { connecting, open, lost, closed };

/// Its address is the `connection` that the host knows. Guarded by the network's lock, but `broken` and the
/// two that it publishes.
struct LinkEnd {
  FakeInstance* owner = nullptr;
  std::weak_ptr<LinkEnd> other;
  std::uint64_t token = 0;  ///< of the host; 0 until it has accepted
  LinkState state = LinkState::connecting;
  std::atomic<bool> broken{false};  ///< lost or closed: copies stop at the next run
  Status lost_status;               ///< written before `broken`, then constant
  std::string lost_text;
  bool told_lost = false;  ///< the host has heard of it, or need not
  int busy = 0;            ///< threads that copy for it or are in a host function with its token
  std::set<std::shared_ptr<Request>> in_flight;

  struct Channel {
    std::uint64_t sent = 0;      ///< sequence number of the last message
    std::uint64_t expected = 1;  ///< of the next message to be delivered here
    std::map<std::uint64_t, Message> early;
  };
  std::map<std::uint32_t, Channel> channels;
  /// Messages and counts sent from here that the other end has not yet given to its host.
  std::uint64_t undelivered = 0;

  /// Whether it takes posts and messages: ok, would_block before it is ready, or why it is lost.
  [[nodiscard]] Status usable() const;
  /// Its owner handles it.
  void push(Event::Kind kind);
  /// Copies stop, and the owner tells the host. A link is lost once.
  void lose(Status status, const std::string& text);
  /// Both ends are lost, because the fault script says so.
  void kill();
  /// Copies stop. Threads see `status` and `text` once they see `broken`.
  void break_off(LinkState to, Status status, const std::string& text);
};

/// While it lives the network's lock is not held, and `disconnect` of the link (if there is one) waits: a
/// thread copies, or is in a host function with the link's token.
class Outside {
 public:
  Outside(Lock& lock, LinkEnd* link);
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  Lock& lock_;
  LinkEnd* const link_;
};

}  // namespace headrace::fake
