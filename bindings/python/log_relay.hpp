// SPDX-License-Identifier: Apache-2.0
// Carries log lines from the threads that write them to a Python function.
#pragma once

#include "bindings/python/interpreter.hpp"

namespace headrace::python {

/// Calls `sink(level, room, text)` for each line, in order, on a thread of its own: threads that log never
/// wait for the GIL. None: lines go to stderr. Returns when the earlier sink has had its lines.
void relay_log(nb::object sink);

/// Called when the interpreter ends: delivers the queued lines. Of later lines only errors are printed, to
/// stderr.
void stop_log_relay();

}  // namespace headrace::python
