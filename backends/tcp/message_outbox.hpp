// SPDX-License-Identifier: Apache-2.0
// Messages on their way to the peer: in order a channel, each at most once, and never more than the peer
// agreed to hold.
//
// A message that belongs to a request takes its place in the order when it is posted and holds back later
// ones of its channel. A write's may go as soon as all chunks of the write have been handed to sockets, for
// the peer waits until they have landed; a read's when the last byte is here.
#pragma once

#include "backends/tcp/frame.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::tcp {

struct OutMessage {
  enum class State {
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
  /// The next one to be sent, if there is one, and the frame header for it. The caller sends it.
  struct Next {
    FrameHeader header;
    std::string bytes;
  };
  [[nodiscard]] std::optional<Next> next();
  [[nodiscard]] bool anything_ready();
  /// The peer has delivered so many in all.
  ///   errors  corrupt (more than were sent)
  Result<void> acknowledged(std::uint16_t channel, std::uint64_t delivered_in_all);
  void clear() { lanes_.clear(); }

 private:
  struct Lane {
    std::deque<std::shared_ptr<OutMessage>> queue;
    std::deque<std::size_t> unacknowledged;  // sizes of those that are sent
    std::uint64_t acknowledged = 0;
    std::uint64_t bytes = 0;  // of both
  };
  static void drop_what_never_left(Lane& lane);

  std::map<std::uint16_t, Lane, std::greater<>> lanes_;  // the agents' own messages before the user's
};

}  // namespace headrace::tcp
