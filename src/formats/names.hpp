// SPDX-License-Identifier: Apache-2.0
// The names in a file come from anywhere. They are printed, and passed to programs for which a text ends at a
// NUL: a name with a control character is refused.
#pragma once

#include <string>
#include <string_view>

namespace headrace::formats {

/// Whether a name has a NUL or another control character of ASCII.
[[nodiscard]] bool has_control_character(std::string_view name) noexcept;

/// A name for a message: in quotation marks, a control character as \x1b.
[[nodiscard]] std::string name_text(std::string_view name);

}  // namespace headrace::formats
