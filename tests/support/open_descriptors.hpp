// SPDX-License-Identifier: Apache-2.0
// The number of descriptors that this process has open, to find leaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace headrace::test {

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace headrace::test
