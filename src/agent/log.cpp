// SPDX-License-Identifier: Apache-2.0
// The public functions of the log. They are here and not in `base`: a program that links `base` besides
// libheadrace.so (the command, a plugin) has a logger of its own, and must still reach that of the library.
#include "base/log.hpp"

namespace headrace {

void set_log_sink(LogSink sink) { Logger::process_default().set_sink(std::move(sink)); }

Result<void> set_log_level(std::string_view spec) { return Logger::process_default().set_level(spec); }

}  // namespace headrace
