// SPDX-License-Identifier: Apache-2.0
// What is known of files that need not be registered.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include <string>

namespace headrace::posix {

/// The answer to HEADRACE_QUERY: a msgpack array, for each file nil or {"bytes", "mode", "mtime"} as stat(2)
/// has them, mtime in whole seconds.
///   errors   not_supported (about something else than a file), invalid_argument (neither path nor
///            descriptor), others as the system says
[[nodiscard]] Result<std::string> query(const headrace_query_v1& args);

}  // namespace headrace::posix
