// SPDX-License-Identifier: Apache-2.0
// The length of a dimension that follows from others: "2*batch", "(tokens + 15)//16".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace headrace {

/// The value, with + - * // ( ) on whole numbers and names; nothing where a name has no value yet, a number
/// grows beyond 64 bits, something is divided by 0, or the text is anything else: then the length is not
/// checked.
[[nodiscard]] std::optional<std::int64_t> evaluate_dimension(
    std::string_view expression,
    const std::function<std::optional<std::int64_t>(std::string_view name)>& value_of);

}  // namespace headrace
