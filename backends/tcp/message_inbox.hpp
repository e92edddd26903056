// SPDX-License-Identifier: Apache-2.0
// Messages that came in, until they may be delivered: each after the write that it is bound to, in order a
// channel.
//
// The chunks of a write come over any socket, its message over socket 0; so either may be first. Chunks that
// announce a message are counted by request until the message says how many there were.
#pragma once

#include "backends/tcp/frame.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace headrace::tcp {

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
  /// A message frame came.
  ///   errors  corrupt (more of them than may wait)
  Result<void> message(const FrameHeader& header, std::string bytes);

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
    std::deque<Waiting> queue;
    std::uint64_t bytes = 0;      // in queue
    std::uint64_t delivered = 0;  // or dropped
    std::uint64_t told = 0;       // of delivered, what the sender knows
    std::uint64_t untold_bytes = 0;
  };
  struct Write {
    std::uint32_t chunks_seen = 0;
    std::optional<std::uint32_t> chunks;  // known once its message is here
    bool failed = false;
  };

  std::map<std::uint16_t, Lane> lanes_;
  std::unordered_map<std::uint64_t, Write> writes_;
};

}  // namespace headrace::tcp
