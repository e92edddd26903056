// SPDX-License-Identifier: Apache-2.0
// What a wait for a signal waits for, as errors say it.
#pragma once

#include <headrace/plugin/comm_v1.h>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace headrace {

inline constexpr std::array comparison_signs{"==", "!=", "<", "<=", ">", ">="};

/// ">= 3"; of HEADRACE_COMM_TAKE "> 0".
inline std::string condition_text(std::int32_t comparison, std::uint64_t value) {
  const auto index = static_cast<std::size_t>(comparison);
  if (index >= comparison_signs.size()) return "> 0";
  return fmt::format("{} {}", comparison_signs[index], value);
}

}  // namespace headrace
