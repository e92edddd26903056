// SPDX-License-Identifier: Apache-2.0
// Reading the kernel's small text files, which have a line or two or do not exist.
#pragma once

#include "base/text.hpp"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace headrace {

/// The text of the file without white space at its ends; nullopt if it cannot be read.
[[nodiscard]] inline std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return std::nullopt;
  return std::string(trim(text));
}

}  // namespace headrace
