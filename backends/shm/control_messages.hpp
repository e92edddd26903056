// SPDX-License-Identifier: Apache-2.0
// What two instances of shm tell each other beside what every link of a host says
// (host_link/control_messages.hpp): where attach reaches them, which memory they share, and the lanes through
// which they read (lane.hpp).
//
// README.md has the layouts. Everything that is read has a bound.
#pragma once

#include "backends/shm/imports.hpp"
#include "host_link/attach.hpp"
#include "host_link/control_messages.hpp"

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::shm {

using host_link::Nonce;

inline constexpr std::size_t max_regions_in_message = 16;  ///< as many as a packet takes descriptors
inline constexpr std::size_t max_ids_in_message = 512;

inline constexpr host_link::Protocol protocol{.backend = "shm",
                                              .control_magic = 0x4d535248,  // "HRSM"
                                              .info_magic = 0x49535248,     // "HRSI"
                                              .version = 2,
                                              .greeting_bytes = 2 * sizeof(std::uint64_t)};

/// The greeting of hello and welcome.
[[nodiscard]] std::string encode_greeting(const Nonce& nonce);
[[nodiscard]] Nonce decode_greeting(std::string_view greeting);

/// Regions that lie in memory files, a descriptor each.
struct Share {
  std::vector<SharedRegion> regions;
};
/// These regions are gone: drop their mappings.
struct Unshare {
  std::vector<std::uint32_t> region_ids;
};

/// Of a lane, from its reader: here is its memory (a descriptor), serve it, forget it.
struct OpenLane {
  std::uint32_t lane_id = 0;
};
struct ServeLane {
  std::uint32_t lane_id = 0;
};
struct DropLane {
  std::uint32_t lane_id = 0;
};

using Said = std::variant<Share, Unshare, OpenLane, ServeLane, DropLane>;

[[nodiscard]] host_link::Other encode(const Share& share);
[[nodiscard]] host_link::Other encode(const Unshare& unshare);
[[nodiscard]] host_link::Other encode(const OpenLane& lane);
[[nodiscard]] host_link::Other encode(const ServeLane& lane);
[[nodiscard]] host_link::Other encode(const DropLane& lane);
/// `descriptors`: how many came with the packet.
///   errors   corrupt (with what is wrong)
[[nodiscard]] Result<Said> decode(const host_link::Other& message, std::size_t descriptors);

}  // namespace headrace::shm
