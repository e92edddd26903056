// SPDX-License-Identifier: Apache-2.0
// Writes texts and bytes in MessagePack, as msgpack_reader.hpp reads them.
#pragma once

#include "wire/byte_writer.hpp"

#include <msgpack/pack.hpp>

#include <cstdint>
#include <string_view>

namespace headrace::wire {

using Packer = msgpack::packer<ByteWriter>;

inline void pack_text(Packer& packer, std::string_view text) {
  packer.pack_str(static_cast<std::uint32_t>(text.size()));
  packer.pack_str_body(text.data(), static_cast<std::uint32_t>(text.size()));
}

inline void pack_binary(Packer& packer, std::string_view bytes) {
  packer.pack_bin(static_cast<std::uint32_t>(bytes.size()));
  packer.pack_bin_body(bytes.data(), static_cast<std::uint32_t>(bytes.size()));
}

}  // namespace headrace::wire
