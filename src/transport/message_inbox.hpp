// SPDX-License-Identifier: Apache-2.0
// Messages that came in, until they may be delivered: each once, after the write that it is bound to, in
// order a channel.
//
// Messages and chunks may come in any order, over any path; a message that comes again is dropped. Chunks
// that announce a message are counted by request until the message says how many there were.
//
// A transport reports every message, and every chunk of a write that announces one, once its bytes are
// visible to the host and to GPUs. It tells the peer the counts that `acknowledgement` gives.
#pragma once

#include "base/errors.hpp"
#include "transport/message.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace headrace::transport {

struct InMessage {
  std::uint16_t channel = 0;
  bool counted = false;  ///< the bytes begin with a CountedImmediate
  std::string bytes;
};

/// Not thread-safe: its link's lock guards it.
class MessageInbox {
 public:
  /// A chunk of a write that announces a message has landed, or was refused.
  ///   errors  corrupt (the peer has more such writes open than it may)
  Result<void> chunk(std::uint64_t request, bool landed);
  /// A message came. One that came before is dropped.
  ///   errors  corrupt (more of them than may wait)
  Result<void> message(const MessageHead& head, std::string bytes);
  /// The number that the next message has if messages keep their order under way.
  [[nodiscard]] std::uint64_t next_number(std::uint16_t channel) const;

  /// The next message whose turn has come, which is delivered with this.
  [[nodiscard]] std::optional<InMessage> next();

  /// A count of delivered messages that the sender should hear, if it is time.
  struct Acknowledgement {
    std::uint16_t channel = 0;
    std::uint64_t delivered = 0;
  };
  [[nodiscard]] std::optional<Acknowledgement> acknowledgement();
  void clear();

 private:
  struct Waiting {
    std::uint64_t request = 0;
    bool dropped = false;
    bool counted = false;
    std::string bytes;
  };
  struct Lane {
    std::deque<std::optional<Waiting>> queue;  // from number `delivered` on; none: it has not come
    std::uint64_t bytes = 0;                   // in queue
    std::uint64_t delivered = 0;               // or dropped
    std::uint64_t told = 0;                    // of delivered, what the sender knows
    std::uint64_t untold_bytes = 0;
  };
  struct Write {
    std::uint32_t chunks_seen = 0;
    std::optional<std::uint32_t> chunks;  // known once its message is here
    bool failed = false;
  };

  Result<void> bind(const MessageHead& head);

  /// Counts first, agents' own messages last: with one of those a peer says that it leaves.
  struct DeliveredBefore {
    bool operator()(std::uint16_t a, std::uint16_t b) const {
      return static_cast<std::uint16_t>(a - count_channel) < static_cast<std::uint16_t>(b - count_channel);
    }
  };
  std::map<std::uint16_t, Lane, DeliveredBefore> lanes_;
  std::unordered_map<std::uint64_t, Write> writes_;
};

}  // namespace headrace::transport
