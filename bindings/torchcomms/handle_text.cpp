// SPDX-License-Identifier: Apache-2.0
#include "bindings/torchcomms/handle_text.hpp"

#include <c10/util/Exception.h>

namespace headrace::torchcomms_backend {
namespace {

constexpr std::string_view prefix = "headrace:";
constexpr std::string_view digits = "0123456789abcdef";

}  // namespace

std::string handle_text(std::string_view bytes) {
  std::string text(prefix);
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += digits[value >> 4];
    text += digits[value & 15U];
  }
  return text;
}

std::string handle_bytes(std::string_view text) {
  TORCH_CHECK(text.starts_with(prefix) && text.size() % 2 == prefix.size() % 2 &&
                  text.find_first_not_of(digits, prefix.size()) == text.npos,
              "\"", text, "\" is no init handle: give the text that get_init_handle returned on each rank");
  std::string bytes;
  for (std::size_t at = prefix.size(); at < text.size(); at += 2)
    bytes += static_cast<char>(digits.find(text[at]) * 16 + digits.find(text[at + 1]));
  return bytes;
}

}  // namespace headrace::torchcomms_backend
