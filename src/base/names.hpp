// SPDX-License-Identifier: Apache-2.0
// Names come from anywhere: peers, files, servers. They are printed into terminals, which obey control
// characters, and passed to programs for which a text ends at a NUL. So a name has none of them.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

/// Whether a name has a NUL or another control character: ASCII's, DEL, or U+0080 to U+009F, which begin
/// commands of terminals, too.
[[nodiscard]] bool has_control_character(std::string_view name) noexcept;

/// A name for a message: in quotation marks, the bytes of a control character as \x1b.
[[nodiscard]] std::string name_text(std::string_view name);

/// The text with the bytes of each control character but line ends as \x1b: fit for a terminal.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace headrace
