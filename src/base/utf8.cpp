// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.hpp"

#include <cstddef>

namespace headrace {
namespace {

using Byte = unsigned char;

/// Length in bytes of the character that begins with `first`; 0: no character does.
std::size_t length_of(Byte first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

/// After four of the first bytes the second byte has a smaller range than 80 to BF.
bool fits_second(Byte first, Byte second) {
  const Byte least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const Byte most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= least && second <= most;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<Byte>(text[at + i]); };
    const std::size_t length = length_of(byte(0));
    if (length == 0 || length > text.size() - at) return false;
    if (length > 1 && !fits_second(byte(0), byte(1))) return false;
    for (std::size_t i = 2; i < length; ++i)
      if ((byte(i) & 0xC0) != 0x80) return false;
    at += length;
  }
  return true;
}

}  // namespace headrace
