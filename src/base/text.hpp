// SPDX-License-Identifier: Apache-2.0
// The few operations on text that option values, log levels and addresses share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// `text` without white space at either end; a view of the same characters.
[[nodiscard]] std::string_view trim(std::string_view text) noexcept;

/// The parts between commas, trimmed, empty ones left out; views of the same characters.
[[nodiscard]] std::vector<std::string_view> split_list(std::string_view text);

/// The candidate that needs the fewest letters changed, added or dropped to become `text`; empty if there is
/// none.
[[nodiscard]] std::string_view nearest_name(std::string_view text,
                                            const std::vector<std::string_view>& candidates);

}  // namespace headrace
