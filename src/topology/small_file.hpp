// SPDX-License-Identifier: Apache-2.0
// Reading the kernel's small text files, which have a line or two or do not exist.
#pragma once

#include "base/text.hpp"

#include <array>
#include <fstream>
#include <optional>
#include <string>

namespace headrace {

/// The text of the file without white space at its ends; nullopt if it cannot be read. The kernel refuses to
/// read some files that it lists, such as the speed of an interface that is down.
[[nodiscard]] inline std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> part{};
  // read(), unlike an iterator over the buffer, keeps the exception of a failed system call inside.
  while (file.read(part.data(), part.size()), file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) return std::nullopt;
  return std::string(trim(text));
}

}  // namespace headrace
