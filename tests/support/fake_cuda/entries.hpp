// SPDX-License-Identifier: Apache-2.0
// The symbols of the fake driver's library.
#pragma once

namespace headrace::cuda {

/// The function of a name as the library exports it; null: it has none of this name, or a test took it away.
[[nodiscard]] void* find_symbol(const char* name);

}  // namespace headrace::cuda
