// SPDX-License-Identifier: Apache-2.0
// Messages between agents; a backend carries them. docs/wire.md section 5.
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

/// A notification with its post, so that one that arrives over two paths is delivered once.
struct UserMessage {
  std::uint64_t request = 0;  ///< 0: sent without a request
  std::uint64_t post_number = 0;
  std::string_view payload;  ///< at most user_payload_bytes; a view of the decoded bytes
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

/// Encodes a notification. errors: invalid_argument (payload too long)
[[nodiscard]] Result<std::string> encode(const UserMessage& message);
/// Decodes a notification. errors: corrupt (too short, too long)
[[nodiscard]] Result<UserMessage> decode_user_message(std::string_view bytes);

// --- channel 1: between the agents themselves

inline constexpr std::size_t agent_message_bytes = 64 * 1024;
/// The most ranges of one revoke; more ranges go in further messages.
inline constexpr std::size_t revoke_ranges = (agent_message_bytes - 32) / sizeof(IdRange);

/// Asks the receiver to refuse new posts on these regions, to wait for its own requests on them, and then to
/// answer. Metadata of an earlier version than `version` does not bring them back.
struct Revoke {
  std::uint64_t sequence = 0;
  std::uint64_t version = 0;
  std::vector<IdRange> ranges;
  friend bool operator==(const Revoke&, const Revoke&) = default;
};
/// The answer to the Revoke of this sequence number.
struct Revoked {
  std::uint64_t sequence = 0;
  friend bool operator==(const Revoked&, const Revoked&) = default;
};
/// The sender's agent ends.
struct Goodbye {
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};
/// Asks whether the receiver's agent is alive.
struct Ask {
  std::uint64_t sequence = 0;
  friend bool operator==(const Ask&, const Ask&) = default;
};
/// The answer to the Ask of this sequence number.
struct Present {
  std::uint64_t sequence = 0;
  friend bool operator==(const Present&, const Present&) = default;
};
/// So many notifications, and so many bytes of their messages on channel 0, the receiver may send in all over
/// this link: the sender has room for them. It never sinks.
struct Credit {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Credit&, const Credit&) = default;
};
/// What each side of a link may send before it hears more. One message of any size fits.
inline constexpr Credit first_credit{1024, std::uint64_t{4} << 20};
/// A kind that this version does not know. The receiver ignores it.
struct UnknownMessage {
  std::uint64_t kind = 0;
  friend bool operator==(const UnknownMessage&, const UnknownMessage&) = default;
};
using AgentMessage = std::variant<Revoke, Revoked, Goodbye, Ask, Present, Credit, UnknownMessage>;

/// Encodes a message. errors: invalid_argument (too many ranges; an UnknownMessage, which is only received)
[[nodiscard]] Result<std::string> encode(const AgentMessage& message);
/// Decodes a message. errors: corrupt (with the offset)
[[nodiscard]] Result<AgentMessage> decode_agent_message(std::string_view bytes);

}  // namespace headrace::wire
