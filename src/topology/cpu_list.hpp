// SPDX-License-Identifier: Apache-2.0
// Sets of numbers in the kernel's notation: "0-3,8,10-11".
#pragma once

#include "base/errors.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// The numbers of a list, ascending, each once. An empty text is the empty set.
///   errors   corrupt (not such a list, or a number over 65535)
[[nodiscard]] Result<std::vector<unsigned>> parse_cpu_list(std::string_view text);

/// The other direction: "0-3,8". Numbers ascend.
[[nodiscard]] std::string cpu_list_text(std::span<const unsigned> numbers);

}  // namespace headrace
