// SPDX-License-Identifier: Apache-2.0
// What tests/system/programs/peer.cpp says and hears: it first writes a greeting and the bytes of its
// metadata, then obeys orders of one byte, and answers each with `peer_done`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::test {

struct PeerGreeting {
  /// Where memory of the peer lies: an open file of its process, and the place in it.
  struct Place {
    std::int32_t descriptor = -1;
    std::int32_t reserved = 0;
    std::int64_t offset = 0;
    std::uint64_t margin_bytes = 0;  ///< before and behind the region: memory that is not registered
  };
  std::uint64_t metadata_bytes = 0;
  std::array<Place, 2> memory;  ///< from `allocate` (of a GPU: registered), merely registered
};

/// No multiple of a page, so that a region neither begins nor ends with one.
inline constexpr std::size_t peer_margin_bytes = 4096 + 8;

enum class PeerOrder : char { deregister_first = '0', deregister_second = '1', close = 'c' };
inline constexpr char peer_done = 'y';

}  // namespace headrace::test
