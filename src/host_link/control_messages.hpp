// SPDX-License-Identifier: Apache-2.0
// What two instances tell each other over their Unix socket: who they are, and that they leave. A backend
// adds messages of its own.
//
// One message is one packet: magic u32, version u16, type u16, body. Everything that is read has a bound.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

namespace headrace::wire {
class PacketReader;
}

namespace headrace::host_link {

inline constexpr std::size_t max_control_bytes = 4096;
inline constexpr std::size_t max_refusal_bytes = 1024;
inline constexpr std::size_t max_name_bytes = 255;

/// What tells the links of one backend from those of another.
struct Protocol {
  const char* backend = "";         ///< begins the names of its sockets, and stands in its sentences
  std::uint32_t control_magic = 0;  ///< begins each packet
  std::uint32_t info_magic = 0;     ///< begins connection information
  std::uint16_t version = 1;        ///< both ends must speak the same
  std::size_t greeting_bytes = 0;   ///< of what the backend says of itself in hello and welcome
};

/// First from the connecting side. Descriptors: message file, the end that rings the sender's bell, the end
/// of the receiver's bell that waits, live table.
struct Hello {
  std::uint64_t incarnation = 0;
  std::uint64_t expected_incarnation = 0;  ///< of the receiver; 0: any
  std::string greeting;                    ///< exactly Protocol::greeting_bytes
  std::string name;
};
/// First from the accepting side, once its host wants the link. Descriptor: live table.
struct Welcome {
  std::uint64_t incarnation = 0;
  std::string greeting;
  std::string name;
};
/// Instead of Welcome; the link ends.
struct Refusal {
  Code code = Code::peer_lost;
  std::string text;
};
/// All that the backend has to say first has been said: the link is ready.
struct Settled {};
/// The sender closes the link on purpose.
struct Goodbye {};
/// A message of the backend's own.
struct Other {
  std::uint16_t type = 0;  ///< none of 1, 2, 3, 6, 7, which are those above in their order
  std::string body;
};

using ControlMessage = std::variant<Hello, Welcome, Refusal, Settled, Goodbye, Other>;

[[nodiscard]] std::string encode(const Protocol& protocol, const ControlMessage& message);
/// `descriptors`: how many came with the packet; those of an Other are the backend's to count.
///   errors   corrupt (with what is wrong), not_supported (another version, with both numbers)
[[nodiscard]] Result<ControlMessage> decode(const Protocol& protocol, std::span<const std::byte> packet,
                                            std::size_t descriptors);

/// For readers of an Other: that its body was read to its end, and that as many descriptors came as it says.
///   errors   corrupt
[[nodiscard]] Result<void> check_fit(const Other& message, const wire::PacketReader& body,
                                     std::size_t descriptors, std::size_t expected);

/// What metadata carries of an instance, for peers that want to connect to it.
struct ConnectionInfo {
  std::string boot_id;      ///< of the owner's host, to tell a dead peer from one elsewhere
  std::string socket_name;  ///< in the runtime directory
};
[[nodiscard]] std::string encode(const Protocol& protocol, const ConnectionInfo& info);
///   errors   corrupt, not_supported (another version)
[[nodiscard]] Result<ConnectionInfo> decode_connection_info(const Protocol& protocol,
                                                            std::span<const std::byte> bytes);

}  // namespace headrace::host_link
