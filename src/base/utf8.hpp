// SPDX-License-Identifier: Apache-2.0
// Names go to programs in other languages, which take UTF-8 alone.
#pragma once

#include <string_view>

namespace headrace {

/// Whether the text is well-formed UTF-8, as the Unicode standard's table 3-7 has it: no longer form than
/// needed, no halves of pairs, nothing above U+10FFFF.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

}  // namespace headrace
