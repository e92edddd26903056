// SPDX-License-Identifier: Apache-2.0
#include "formats/names.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::formats {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F;
}

}  // namespace

bool has_control_character(std::string_view name) noexcept { return std::ranges::any_of(name, is_control); }

std::string name_text(std::string_view name) {
  std::string text = "\"";
  for (const char c : name) {
    if (is_control(c))
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      text += c;
  }
  return text += '"';
}

}  // namespace headrace::formats
