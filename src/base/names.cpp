// SPDX-License-Identifier: Apache-2.0
#include "base/names.hpp"

#include <fmt/format.h>

namespace headrace {
namespace {

/// How many bytes the control character at the beginning of the text has; 0: there is none.
std::size_t control_bytes(std::string_view text) noexcept {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x20 || byte == 0x7F) return 1;
  if (byte != 0xC2 || text.size() < 2) return 0;
  return static_cast<unsigned char>(text[1]) < 0xA0 ? 2 : 0;
}

std::string escaped(std::string_view text, char kept) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t control = text[at] == kept ? 0 : control_bytes(text.substr(at));
    if (control == 0) result += text[at++];
    for (; control > 0; --control) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
  }
  return result;
}

}  // namespace

bool has_control_character(std::string_view name) noexcept {
  for (std::size_t at = 0; at < name.size(); ++at)
    if (control_bytes(name.substr(at)) > 0) return true;
  return false;
}

std::string name_text(std::string_view name) { return '"' + escaped(name, '"') + '"'; }

std::string printable(std::string_view text) { return escaped(text, '\n'); }

}  // namespace headrace
