// SPDX-License-Identifier: Apache-2.0
#include "choice/candidate.hpp"

#include "base/names.hpp"
#include "base/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace headrace::choice {

std::vector<headrace_setting_v1> known_of(std::span<const headrace_setting_v1> settings,
                                          const std::vector<std::string>& names) {
  std::vector<headrace_setting_v1> known;
  for (const auto& setting : settings)
    if (std::ranges::find(names, std::string_view(setting.name)) != names.end()) known.push_back(setting);
  return known;
}

Result<void> check_known(std::span<const headrace_setting_v1> settings, std::vector<std::string_view> names,
                         std::string_view what) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const auto& setting : settings) {
    const std::string_view name = setting.name;
    if (std::ranges::find(names, name) != names.end()) continue;
    return make_error(Code::invalid_argument,
                      "none of its backends has the hint {} of {}: did you mean {}? There are: {}",
                      name_text(name), what, nearest_name(name, names), fmt::join(names, ", "));
  }
  return {};
}

}  // namespace headrace::choice
