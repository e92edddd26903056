// SPDX-License-Identifier: Apache-2.0
// The 32 bits that go with a chunk: which request of the link, and which chunk of it.
#pragma once

#include <cstdint>

namespace headrace::rail {

/// Chunks of one request that may have marks. A longer request is settled instead.
inline constexpr std::uint32_t most_marked_chunks = 64;
/// Numbers that a link may have open in one direction.
inline constexpr std::uint64_t number_window = 1024;

/// Of a link, in both directions. Another one for each link, so that a mark of an earlier link of the same
/// peer, which a network without connections may still bring, is old.
constexpr std::uint64_t first_number(std::uint64_t link_id) { return 1 + (link_id & 0xFF'FFFF); }

struct Mark {
  std::uint32_t number = 0;  ///< the low bits of a request's number
  std::uint32_t chunk = 0;   ///< below most_marked_chunks
};

inline constexpr unsigned number_bits = 25;  // the top bit stays 0: docs/decisions/0016, section 9

constexpr std::uint32_t mark_of(std::uint64_t number, std::uint32_t chunk) {
  return (static_cast<std::uint32_t>(number) & ((1U << number_bits) - 1)) << 6 | chunk;
}
constexpr Mark read_mark(std::uint32_t mark) {
  return {(mark >> 6) & ((1U << number_bits) - 1), mark & (most_marked_chunks - 1)};
}
/// How far the number of a mark lies above `from`, if it is not older. An old one lies very far above.
constexpr std::uint64_t distance_from(std::uint64_t from, const Mark& mark) {
  return (mark.number - static_cast<std::uint32_t>(from)) & ((1U << number_bits) - 1);
}

}  // namespace headrace::rail
