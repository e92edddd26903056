// SPDX-License-Identifier: Apache-2.0
// The facts that travel with a message, and how many messages may be under way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::transport {

/// The longest: an agent sends at most 64 KiB and its own 16 bytes.
inline constexpr std::uint64_t max_message_bytes = 64 * 1024 + 16;

// The credits of a sender. The receiver counts them too: neither side stores more for the other.
inline constexpr std::size_t max_unacknowledged_messages = 1024;  ///< a channel of messages
inline constexpr std::uint64_t max_unacknowledged_message_bytes = 4 << 20;
inline constexpr std::size_t max_message_channels = 16;

/// The channel of a message that carries an immediate and nothing else.
inline constexpr std::uint16_t count_channel = UINT16_MAX;

/// The first bytes of a message that is counted.
struct CountedImmediate {
  std::uint32_t scope = 0;
  std::uint32_t immediate = 0;
};
static_assert(sizeof(CountedImmediate) == 8);

struct MessageHead {
  std::uint16_t channel = 0;
  std::uint64_t number = 0;   ///< in its channel, from 0; a transport that keeps order need not send it
  std::uint64_t request = 0;  ///< the write that must have landed first; 0: none
  std::uint32_t chunks = 0;   ///< of that write
  bool dropped = false;       ///< it has a place in the order, no bytes, and is not delivered
  bool counted = false;       ///< the bytes begin with a CountedImmediate
};

}  // namespace headrace::transport
