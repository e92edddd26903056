// SPDX-License-Identifier: Apache-2.0
// The kernel's way to write sets of numbers: "0-3,8,10-11".
#pragma once

#include "base/errors.hpp"

#include <string_view>
#include <vector>

namespace headrace {

/// The numbers of a list in ascending order, each once. An empty text is the empty set.
///   errors   corrupt (not such a list, or a number over 65535)
[[nodiscard]] Result<std::vector<unsigned>> parse_cpu_list(std::string_view text);

}  // namespace headrace
