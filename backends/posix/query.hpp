// SPDX-License-Identifier: Apache-2.0
// Queries about files that need not be registered.
#pragma once

#include <headrace/plugin/backend_v1.h>
#include <headrace/result.hpp>

#include <string>

namespace headrace::posix {

/// The answer to HEADRACE_QUERY: a msgpack array; for each file nil or {"bytes", "mode", "mtime"} as in
/// stat(2), mtime in whole seconds.
///   errors   not_supported (not a file), invalid_argument (neither path nor descriptor), others from the
///            system
[[nodiscard]] Result<std::string> query(const headrace_query_v1& args);

}  // namespace headrace::posix
