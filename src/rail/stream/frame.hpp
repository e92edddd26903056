// SPDX-License-Identifier: Apache-2.0
// What travels between two NICs over a stream once they know each other: docs/wire.md, section 8.
#pragma once

#include "base/errors.hpp"
#include "rail/stream/memories.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::stream {

enum class FrameType : std::uint8_t {
  write = 1,      ///< ranges, payload; with `flag_mark` a mark
  read = 2,       ///< ranges
  data = 3,       ///< payload: the answer to a read, before its `end`
  offer = 4,      ///< a message of `value` bytes waits; a short one is the payload
  take = 5,       ///< a receive is there for that message
  message = 6,    ///< payload: a message that was taken
  end = 7,        ///< of a write, a read, an offer or a fetch; `value` is a code: ok, not_found,
                  ///< invalid_argument, not_supported (of a fetch: it is to be sent as a write)
  fetch = 8,      ///< ranges; payload: where the bytes lie in the sender's process. Else as a write
  lend = 9,       ///< payload: where the bytes of a read lie in the sender's process
  returned = 10,  ///< they were copied; `value` is a code: ok, not_supported (they are to be sent)
};

inline constexpr std::uint8_t flag_mark = 1;
inline constexpr std::uint8_t flag_lend = 2;  ///< of a read: its initiator can copy

struct FrameHeader {
  FrameType type = FrameType::write;
  std::uint8_t flags = 0;
  std::uint16_t reserved = 0;
  std::uint32_t ranges = 0;
  std::uint64_t post = 0;  ///< a number that its initiator gives: rising, from 1
  std::uint64_t payload = 0;
  std::uint32_t value = 0;  ///< mark, bytes of a message, or code
  std::uint32_t reserved_too = 0;
};
inline constexpr std::size_t header_bytes = 32;
static_assert(sizeof(FrameHeader) == header_bytes && std::endian::native == std::endian::little,
              "headers are copied as they lie in memory");

inline constexpr std::size_t range_bytes = 24;
inline constexpr std::uint32_t max_ranges = 1024;
inline constexpr std::size_t source_bytes = 16;  ///< a place in a fetch: address u64, bytes u64
inline constexpr std::uint32_t max_message_bytes = 64 * 1024 + 64;
inline constexpr std::uint32_t max_short_message_bytes = 256;  ///< it travels with its offer

/// As it travels in `value`.
[[nodiscard]] constexpr std::uint32_t code_value(Code code) { return static_cast<std::uint32_t>(code); }

/// Header and ranges.
[[nodiscard]] std::string encode(FrameHeader header, const std::vector<Range>& ranges = {});

/// Whether a header of a peer can be what it says, as far as it alone can tell.
///   errors  corrupt
[[nodiscard]] Result<void> check(const FrameHeader& header);
/// The ranges behind a header that is checked; `bytes` are theirs.
///   errors  corrupt (an empty one; lengths that are not the payload of a write)
[[nodiscard]] Result<std::vector<Range>> read_ranges(const FrameHeader& header, std::string_view bytes);

}  // namespace headrace::rail::stream
