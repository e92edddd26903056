// SPDX-License-Identifier: Apache-2.0
// The length of a dimension that follows from other dimensions: "2*batch", "(tokens + 15)//16".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace headrace {

/// Evaluates + - * // ( ) on whole numbers and names. Nullopt if a name has no value yet, a number exceeds 64
/// bits, a division is by 0, or the text has another form: then the length is not checked.
[[nodiscard]] std::optional<std::int64_t> evaluate_dimension(
    std::string_view expression,
    const std::function<std::optional<std::int64_t>(std::string_view name)>& value_of);

}  // namespace headrace
