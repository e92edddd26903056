// SPDX-License-Identifier: Apache-2.0
// The records of a zip archive: signatures, lengths and flags, from the format's specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace headrace::formats::zip {

// A local header comes before each member's bytes. The directory has an entry for each member, and ends with
// the end record. If a number of that record needs more bits, the 64-bit end record and its locator come
// before it.
inline constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                               end64_mark = 0x06064b50, locator_mark = 0x07064b50;
inline constexpr std::size_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                             locator_bytes = 20;

inline constexpr std::uint16_t encrypted_flag = 1 << 0, utf8_flag = 1 << 11;
inline constexpr std::uint16_t stored = 0;  // the method of members that are not compressed

// A number that does not fit has this mark, and stands in the extra field with this tag.
inline constexpr std::uint32_t in_zip64 = 0xFFFFFFFF;
inline constexpr std::uint16_t count_in_zip64 = 0xFFFF;
inline constexpr std::uint16_t zip64_tag = 1;

/// The little-endian number at an offset of a record, which has it whole.
template <class Number>
[[nodiscard]] Number number_at(std::span<const std::byte> record, std::size_t at) {
  Number value = 0;
  std::memcpy(&value, record.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

/// The zip64 field among the extra fields of an entry; nullopt if there is none.
[[nodiscard]] inline std::optional<std::span<const std::byte>> find_zip64(std::span<const std::byte> extra) {
  while (extra.size() >= 4) {
    const std::size_t length = number_at<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) break;
    if (number_at<std::uint16_t>(extra, 0) == zip64_tag) return extra.subspan(4, length);
    extra = extra.subspan(4 + length);
  }
  return std::nullopt;
}

}  // namespace headrace::formats::zip
