// SPDX-License-Identifier: Apache-2.0
// The names in a file.
#pragma once

#include "base/names.hpp"

#include <string_view>

namespace headrace::formats {

using headrace::has_control_character;
using headrace::name_text;
using headrace::printable;

/// Whether a file of that name, unpacked into a folder, would lie inside it: no part of the name is "..", it
/// does not begin with "/", and it has no "\\", which separates folders on other systems.
[[nodiscard]] bool stays_in_folder(std::string_view name) noexcept;

}  // namespace headrace::formats
