// SPDX-License-Identifier: Apache-2.0
// Checks of memory before it is registered.
#pragma once

#include <headrace/memory.hpp>
#include <headrace/result.hpp>

#include <span>

namespace headrace::engine {

/// invalid_argument, with the range as page, unless each range names memory that this process has.
Result<void> check_ranges(std::span<const MemoryRange> ranges);
/// invalid_argument unless the name and the note are short enough, and the name is UTF-8.
Result<void> check_names(const RegisterOptions& options);

}  // namespace headrace::engine
