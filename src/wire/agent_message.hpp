// SPDX-License-Identifier: Apache-2.0
// What agents say to each other through a backend's messages. docs/wire.md section 5.
#pragma once

#include <headrace/result.hpp>

#include "wire/metadata.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::wire {

// --- channel 0: a user's notification

inline constexpr std::size_t user_payload_bytes = 64 * 1024;

/// A notification and what it belongs to, so that one that came over two paths is delivered once.
struct UserMessage {
  std::uint64_t request = 0;  ///< 0: sent on its own
  std::uint64_t post_number = 0;
  std::string_view payload;  ///< at most user_payload_bytes; views the decoded bytes
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

///   errors  invalid_argument (payload too long)
[[nodiscard]] Result<std::string> encode(const UserMessage& message);
///   errors  corrupt (too short, too long)
[[nodiscard]] Result<UserMessage> decode_user_message(std::string_view bytes);

// --- channel 1: between the agents themselves

inline constexpr std::size_t agent_message_bytes = 64 * 1024;
/// As many ranges as one revoke holds; more go in further messages.
inline constexpr std::size_t revoke_ranges = (agent_message_bytes - 32) / sizeof(IdRange);

/// Asks the receiver to let no new post use these regions, to wait for its own requests on them, and to
/// answer.
struct Revoke {
  std::uint64_t sequence = 0;
  std::vector<IdRange> ranges;
  friend bool operator==(const Revoke&, const Revoke&) = default;
};
/// The answer to the Revoke of that sequence.
struct Revoked {
  std::uint64_t sequence = 0;
  friend bool operator==(const Revoked&, const Revoked&) = default;
};
/// The agent ends.
struct Goodbye {
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};
/// A kind that this version does not know: to be passed over.
struct UnknownMessage {
  std::uint64_t kind = 0;
  friend bool operator==(const UnknownMessage&, const UnknownMessage&) = default;
};
using AgentMessage = std::variant<Revoke, Revoked, Goodbye, UnknownMessage>;

///   errors  invalid_argument (too many ranges; an UnknownMessage, which only comes in)
[[nodiscard]] Result<std::string> encode(const AgentMessage& message);
///   errors  corrupt (with the offset)
[[nodiscard]] Result<AgentMessage> decode_agent_message(std::string_view bytes);

}  // namespace headrace::wire
