// SPDX-License-Identifier: Apache-2.0
// Backends of communicators that this build has left out: HEADRACE_COMM_<BACKEND>=OFF, see
// cmake/comm_backends.cmake.
#pragma once

#include <string_view>

namespace headrace::collectives {

#ifdef HEADRACE_COMM_LEFT_OUT
inline constexpr std::string_view names_left_out = HEADRACE_COMM_LEFT_OUT;  // "lazy,nccl"
#else
inline constexpr std::string_view names_left_out;
#endif

[[nodiscard]] constexpr bool is_left_out(std::string_view name, std::string_view names = names_left_out) {
  while (!names.empty()) {
    const std::size_t comma = names.find(',');
    if (names.substr(0, comma) == name) return true;
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
  }
  return false;
}

}  // namespace headrace::collectives
