// SPDX-License-Identifier: Apache-2.0
// Carries log lines from the threads that write them to a Python function.
#pragma once

#include "bindings/python/interpreter.hpp"

namespace headrace::python {

/// Lines go to `sink(level, room, text)` on a thread of their own, in order: whoever logs never waits for the
/// GIL. None: to stderr again. Returns once the sink before it has had its lines.
void relay_log(nb::object sink);

/// As the interpreter ends: delivers what waits; of later lines only errors are told, on stderr.
void stop_log_relay();

}  // namespace headrace::python
