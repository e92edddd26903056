// SPDX-License-Identifier: Apache-2.0
// A few bytes for each NIC, as one: the address of an engine, and the descriptor of its memory.
#pragma once

#include "base/errors.hpp"
#include "rail/link_message.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::rail {

inline std::string encode_nic_list(std::span<const std::string> each) {
  wire::ByteWriter out;
  out.number(static_cast<std::uint8_t>(each.size()));
  for (const std::string& bytes : each) out.text(bytes, max_bytes_of_nic);
  return std::move(out).take();
}

/// `what` names it in the error.
///   errors  corrupt
inline Result<std::vector<std::string>> read_nic_list(std::string_view bytes, std::string_view what) {
  wire::PacketReader in(bytes);
  const std::size_t count = in.number<std::uint8_t>();
  std::vector<std::string> each;
  while (in.good() && each.size() < count) each.push_back(in.text(1, max_bytes_of_nic));
  if (!in.complete() || count == 0 || count > max_rails)
    return make_error(Code::corrupt, "{} of {} bytes is damaged or cut: it should list 1 to {} NICs", what,
                      bytes.size(), max_rails);
  return each;
}

}  // namespace headrace::rail
