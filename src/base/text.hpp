// SPDX-License-Identifier: Apache-2.0
// Operations on text for option values, log levels and addresses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// `text` without white space at its ends; a view of the same characters.
[[nodiscard]] std::string_view trim(std::string_view text) noexcept;

/// The texts between commas, trimmed, without empty ones; views of the same characters.
[[nodiscard]] std::vector<std::string_view> split_list(std::string_view text);

/// The candidate that becomes `text` with the fewest letters changed, added or dropped; empty if none does
/// with `most` at most.
[[nodiscard]] std::string_view nearest_name(std::string_view text,
                                            const std::vector<std::string_view>& candidates,
                                            std::size_t most = std::string_view::npos - 1);

}  // namespace headrace
