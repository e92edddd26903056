// SPDX-License-Identifier: Apache-2.0
#include "metadata/store.hpp"

namespace headrace::metadata {
namespace {

bool stays(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Result<void> check_entry(std::string_view name, std::string_view label, std::size_t bytes,
                         std::chrono::nanoseconds ttl) {
  if (name.empty() || name.size() > Store::most_name_bytes || label.size() > Store::most_name_bytes) {
    return make_error(Code::invalid_argument,
                      "publish a name of {} and a label of {} bytes: 1 to {} and at most {} are allowed",
                      name.size(), label.size(), Store::most_name_bytes, Store::most_name_bytes);
  }
  if (bytes > Store::most_entry_bytes) {
    return make_error(Code::invalid_argument, "publish {} bytes for \"{}\": at most {} are allowed", bytes,
                      name, Store::most_entry_bytes);
  }
  if (ttl < std::chrono::seconds(1)) {
    return make_error(Code::invalid_argument,
                      "publish \"{}\" with a time to live of {} ms: the least is 1 s, so that a short delay "
                      "does not end it",
                      name, std::chrono::duration_cast<std::chrono::milliseconds>(ttl).count());
  }
  return {};
}

Error no_such_entry(std::string_view name, std::string_view label, std::string_view where) {
  if (label.empty()) return make_error(Code::not_found, "\"{}\" has published nothing in {}", name, where);
  return make_error(Code::not_found, "\"{}\" has published nothing under \"{}\" in {}", name, label, where);
}

Error not_the_owner(std::string_view name, std::string_view label, std::string_view where) {
  return make_error(
      Code::not_found,
      "\"{}\"{}{} in {} cannot be removed from here: it was never published from here, or another "
      "agent has published it since",
      name, label.empty() ? "" : ", label ", label, where);
}

std::string escape_name(std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    // A dot at the beginning would hide a file, and "." and ".." are not files.
    if (stays(c) && !(c == '.' && escaped.empty())) {
      escaped += c;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

Result<std::string> unescape_name(std::string_view escaped) {
  std::string name;
  for (std::size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] != '%') {
      name += escaped[i];
      continue;
    }
    const int high = i + 1 < escaped.size() ? hex_digit(escaped[i + 1]) : -1;
    const int low = i + 2 < escaped.size() ? hex_digit(escaped[i + 2]) : -1;
    if (high < 0 || low < 0) break;
    name += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (escape_name(name) != escaped)
    return make_error(Code::invalid_argument, "\"{}\" is not an escaped name", escaped);
  return name;
}

}  // namespace headrace::metadata
