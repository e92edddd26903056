// SPDX-License-Identifier: Apache-2.0
// Requests and answers on the metadata socket after the handshake. docs/wire.md section 6.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace headrace::wire {

struct MetadataSocketLimits {
  static constexpr std::size_t length_bytes = 4;    ///< u32 before each message
  static constexpr std::size_t small_bytes = 4096;  ///< limit of a request without metadata
  static constexpr std::size_t large_bytes = std::size_t{1}
                                             << 30;  ///< limit of a request or answer with metadata
  static constexpr std::size_t label_bytes = 255;
  static constexpr std::size_t text_bytes = 1024;  ///< of an error
};

/// Asks for the metadata with this `label` (empty: all of it), if possible as an update since version
/// `since`.
struct FetchRequest {
  std::string label;
  std::uint64_t since = 0;
  friend bool operator==(const FetchRequest&, const FetchRequest&) = default;
};
/// Passes the sender's metadata; a view of the decoded bytes.
struct SendRequest {
  std::string_view metadata;
  friend bool operator==(const SendRequest&, const SendRequest&) = default;
};
using MetadataRequest = std::variant<FetchRequest, SendRequest>;

// Every encode returns the message with its length before it; every decode takes the message without its
// length.

/// Encodes a request. errors: invalid_argument (label or metadata too long)
[[nodiscard]] Result<std::string> encode(const MetadataRequest& request);
/// Decodes a request. errors: corrupt (with the offset)
[[nodiscard]] Result<MetadataRequest> decode_metadata_request(std::string_view message);

/// The largest length of a request that begins with these bytes: the receiver allocates no more.
///   shapes  the first two bytes of the message, or its only byte
[[nodiscard]] std::size_t metadata_request_limit(std::string_view first_bytes) noexcept;

/// Encodes the answer to a fetch (the metadata) or to a send (empty), or the error.
[[nodiscard]] std::string encode_fetch_answer(const Result<std::string>& answer);
[[nodiscard]] std::string encode_send_answer(const Result<void>& answer);
/// Decode an answer; the result of a fetch is a view of the message.
///   errors  the error of the other side, or corrupt (with the offset)
[[nodiscard]] Result<std::string_view> decode_fetch_answer(std::string_view message);
[[nodiscard]] Result<void> decode_send_answer(std::string_view message);

}  // namespace headrace::wire
