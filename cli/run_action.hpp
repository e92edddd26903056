// SPDX-License-Identifier: Apache-2.0
// The end of a command: its exit code, from the result of its action and of writing to the standard output.
#pragma once

#include <headrace/result.hpp>

#include <functional>

namespace headrace::cli {

/// Runs the action. Returns the exit code: 0, or 1 after an error, which it prints to stderr.
int run_action(const std::function<Result<void>()>& action);

/// Flushes the standard output. Returns the exit code: 0, or 1 after an error, which it prints to stderr.
int flush_output();

}  // namespace headrace::cli
