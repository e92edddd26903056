// SPDX-License-Identifier: Apache-2.0
// What tests/system/programs/peer.cpp writes first, before the bytes of its metadata.
#pragma once

#include <array>
#include <cstdint>

namespace headrace::test {

struct PeerGreeting {
  /// Where memory of the peer lies: an open file of its process, and the place in it.
  struct Place {
    std::int32_t descriptor = -1;
    std::int32_t reserved = 0;
    std::int64_t offset = 0;
  };
  std::uint64_t metadata_bytes = 0;
  std::array<Place, 2> memory;  ///< from `allocate`, merely registered
};

}  // namespace headrace::test
