// SPDX-License-Identifier: Apache-2.0
// Checks UTF-8: names are passed to programs in other languages, which accept UTF-8 alone.
#pragma once

#include <string_view>

namespace headrace {

/// Whether the text is well-formed UTF-8 as in table 3-7 of the Unicode standard: no overlong form, no
/// surrogates, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

}  // namespace headrace
