// SPDX-License-Identifier: Apache-2.0
#include "runner/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little);

/// Row k: the checksum of each byte with k zero bytes after it.
constexpr auto crc_tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0xEDB88320U : 0U);
    table[0][i] = sum;
  }
  for (std::size_t k = 1; k < table.size(); ++k)
    for (std::size_t i = 0; i < 256; ++i)
      table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xFF];
  return table;
}();

}  // namespace

/// Eight bytes at a time (Kounavis and Berry, "A systematic approach to building high performance
/// software-based CRC generators", 2005).
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  std::uint32_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes.data(), sizeof eight);
    eight ^= sum;
    sum = 0;
    for (std::size_t i = 0; i < 8; ++i) sum ^= crc_tables[7 - i][(eight >> (8 * i)) & 0xFF];
  }
  for (const std::byte byte : bytes)
    sum = (sum >> 8) ^ crc_tables[0][(sum ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  return ~sum;
}

}  // namespace headrace
