// SPDX-License-Identifier: Apache-2.0
// What two instances tell each other over their Unix socket: who they are, which memory they share, that they
// leave.
//
// One message is one packet. README.md has the layouts. Everything that is read has a bound.
#pragma once

#include "backends/shm/imports.hpp"
#include "backends/shm/peer_process.hpp"

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace headrace::shm {

inline constexpr std::size_t max_control_bytes = 4096;
inline constexpr std::size_t max_regions_in_message = 16;  ///< as many as a packet takes descriptors
inline constexpr std::size_t max_ids_in_message = 512;
inline constexpr std::size_t max_refusal_bytes = 1024;
inline constexpr std::size_t max_name_bytes = 255;

/// First from the connecting side. Descriptors: message file, bell of the sender, bell of the receiver, live
/// table.
struct Hello {
  std::uint64_t incarnation = 0;
  std::uint64_t expected_incarnation = 0;  ///< of the receiver; 0: any
  Nonce nonce;
  std::string name;
};
/// First from the accepting side, once its host wants the link. Descriptor: live table.
struct Welcome {
  std::uint64_t incarnation = 0;
  Nonce nonce;
  std::string name;
};
/// Instead of Welcome; the link ends.
struct Refusal {
  Code code = Code::peer_lost;
  std::string text;
};
/// Regions that lie in memory files, a descriptor each.
struct Share {
  std::vector<SharedRegion> regions;
};
/// These regions are gone: drop their mappings.
struct Unshare {
  std::vector<std::uint32_t> region_ids;
};
/// All that was registered before the link has been said: the link is ready.
struct Settled {};
/// The sender closes the link on purpose.
struct Goodbye {};

using ControlMessage = std::variant<Hello, Welcome, Refusal, Share, Unshare, Settled, Goodbye>;

[[nodiscard]] std::string encode(const ControlMessage& message);
/// `descriptors`: how many came with the packet.
///   errors   corrupt (with what is wrong), not_supported (another version, with both numbers)
[[nodiscard]] Result<ControlMessage> decode(std::span<const std::byte> packet, std::size_t descriptors);

/// What metadata carries of an instance, for peers that want to connect to it.
struct ConnectionInfo {
  std::string boot_id;      ///< of the owner's host, to tell a dead peer from one elsewhere
  std::string socket_name;  ///< in the runtime directory
};
[[nodiscard]] std::string encode(const ConnectionInfo& info);
///   errors   corrupt, not_supported (another version)
[[nodiscard]] Result<ConnectionInfo> decode_connection_info(std::span<const std::byte> bytes);

}  // namespace headrace::shm
