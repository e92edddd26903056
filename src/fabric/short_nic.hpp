// SPDX-License-Identifier: Apache-2.0
// Addresses of NICs and keys of their memory as few bytes: a descriptor travels with each small message of
// its users. What has no short form is written as it is.
#pragma once

#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <cstdint>
#include <string>

namespace headrace::fabric {

void write_short_address(wire::ByteWriter& out, const std::string& address);
/// Bytes from outside: the reader fails if they are none.
[[nodiscard]] std::string read_short_address(wire::PacketReader& in);

/// What a key repeats of the descriptor that it is in.
struct KeyContext {
  const std::string& address;  ///< of its NIC
  std::uint64_t length_bytes = 0;
};
void write_short_key(wire::ByteWriter& out, const std::string& key, const KeyContext& context);
///   as read_short_address
[[nodiscard]] std::string read_short_key(wire::PacketReader& in, const KeyContext& context);

}  // namespace headrace::fabric
