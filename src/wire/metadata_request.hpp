// SPDX-License-Identifier: Apache-2.0
// What is asked and answered over the metadata socket once both sides have shaken hands. docs/wire.md
// section 6.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace headrace::wire {

struct MetadataSocketLimits {
  static constexpr std::size_t length_bytes = 4;                    ///< u32 before each message
  static constexpr std::size_t small_bytes = 4096;                  ///< a request that carries no metadata
  static constexpr std::size_t large_bytes = std::size_t{1} << 30;  ///< a request or answer that does
  static constexpr std::size_t label_bytes = 255;
  static constexpr std::size_t text_bytes = 1024;  ///< of an error
};

/// Asks for the metadata that goes by `label` (empty: all of it), if possible as an update from version
/// `since`.
struct FetchRequest {
  std::string label;
  std::uint64_t since = 0;
  friend bool operator==(const FetchRequest&, const FetchRequest&) = default;
};
/// Gives the sender's metadata; the view is of the bytes that were decoded.
struct SendRequest {
  std::string_view metadata;
  friend bool operator==(const SendRequest&, const SendRequest&) = default;
};
using MetadataRequest = std::variant<FetchRequest, SendRequest>;

// Every encode gives the message with its length before it; every decode takes the message without.

///   errors  invalid_argument (label or metadata too long)
[[nodiscard]] Result<std::string> encode(const MetadataRequest& request);
///   errors  corrupt (with the offset)
[[nodiscard]] Result<MetadataRequest> decode_metadata_request(std::string_view message);

/// How long a request that begins with these bytes may be: the receiver sets memory aside for no more.
///   shapes  the first two bytes of the message, or its only one
[[nodiscard]] std::size_t metadata_request_limit(std::string_view first_bytes) noexcept;

/// The answer to a fetch (its metadata) and to a send (empty), or why there is none.
[[nodiscard]] std::string encode_fetch_answer(const Result<std::string>& answer);
[[nodiscard]] std::string encode_send_answer(const Result<void>& answer);
/// Views the metadata inside the message.
///   errors  what the other side answered, or corrupt (with the offset)
[[nodiscard]] Result<std::string_view> decode_fetch_answer(std::string_view message);
[[nodiscard]] Result<void> decode_send_answer(std::string_view message);

}  // namespace headrace::wire
