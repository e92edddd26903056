// SPDX-License-Identifier: Apache-2.0
// Messages on their way to the peer: in order a channel, each at most once, and never more than the peer
// agreed to hold.
//
// A message that belongs to a request takes its place in the order when it is posted and holds back later
// ones of its channel. A write's may go as soon as all chunks of the write have been handed to the network,
// for the peer waits until they have landed; a read's when the last byte is here.
//
// A transport sends what `next` gives, in any way that loses nothing: the peer's inbox puts the messages in
// order again. It passes the peer's counts on to `acknowledged`; one that does not keep order drops a count
// that is lower than an earlier one.
#pragma once

#include "base/errors.hpp"
#include "transport/message.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace headrace::transport {

struct OutMessage {
  enum class State : std::uint8_t {
    waiting,  ///< for its request
    ready,
    dropped,  ///< its request failed: it is not delivered
  };
  std::uint16_t channel = 0;
  State state = State::ready;
  std::uint64_t request = 0;  ///< the write that the peer must have whole first; 0: none
  std::uint32_t chunks = 0;   ///< of that write, those that went out
  bool counted = false;       ///< the bytes begin with a CountedImmediate
  std::string bytes;
};

/// Not thread-safe: its link's lock guards it.
class MessageOutbox {
 public:
  /// Whether one more of this size may be added now.
  [[nodiscard]] bool has_room(std::uint16_t channel, std::size_t bytes) const;
  /// Whether the channel can be used at all.
  [[nodiscard]] bool knows(std::uint16_t channel) const {
    return lanes_.contains(channel) || lanes_.size() < max_message_channels;
  }

  std::shared_ptr<OutMessage> add(std::uint16_t channel, std::string bytes, OutMessage::State state);
  /// The next one to be sent, if there is one. The caller sends it.
  struct Next {
    MessageHead head;
    std::string bytes;
  };
  [[nodiscard]] std::optional<Next> next();
  [[nodiscard]] bool anything_ready();
  /// How many `next` has not given yet.
  [[nodiscard]] std::uint64_t unsent() const;
  /// The peer has delivered or dropped so many in all.
  ///   errors  corrupt (more than were sent, or fewer than before)
  Result<void> acknowledged(std::uint16_t channel, std::uint64_t delivered_in_all);
  void clear() { lanes_.clear(); }

 private:
  struct Lane {
    std::deque<std::shared_ptr<OutMessage>> queue;
    std::deque<std::size_t> unacknowledged;  // sizes of those that are sent
    std::uint64_t sent = 0;
    std::uint64_t acknowledged = 0;
    std::uint64_t bytes = 0;  // of both
  };
  static void drop_what_never_left(Lane& lane);

  std::map<std::uint16_t, Lane, std::greater<>> lanes_;  // the agents' own messages before the user's
};

}  // namespace headrace::transport
