// SPDX-License-Identifier: Apache-2.0
#include "formats/names.hpp"

#include <algorithm>

namespace headrace::formats {

bool stays_in_folder(std::string_view name) noexcept {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace headrace::formats
