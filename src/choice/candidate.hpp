// SPDX-License-Identifier: Apache-2.0
// A backend that `auto` may use, and which hints it knows.
#pragma once

#include "base/errors.hpp"

#include <headrace/plugin/comm_v1.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::choice {

struct Candidate {
  std::string name;  ///< as tables of choices have it
  /// Loads what it needs.
  std::function<Result<headrace_comm_backend_v1>()> table;
  std::vector<std::string> hints = {};       ///< of communicators
  std::vector<std::string> call_hints = {};  ///< of calls
};

/// The settings whose names are among these. The texts stay their owner's.
[[nodiscard]] std::vector<headrace_setting_v1> known_of(std::span<const headrace_setting_v1> settings,
                                                        const std::vector<std::string>& names);
/// Refuses a setting that is in none of the lists.
///   errors  invalid_argument (the nearest)
[[nodiscard]] Result<void> check_known(std::span<const headrace_setting_v1> settings,
                                       std::vector<std::string_view> names, std::string_view what);

}  // namespace headrace::choice
