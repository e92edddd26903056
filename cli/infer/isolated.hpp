// SPDX-License-Identifier: Apache-2.0
// A model in a process of its own: compiled code that crashes ends that process alone.
#pragma once

#include <headrace/result.hpp>

#include <functional>
#include <string>

namespace headrace::cli {

/// Runs the action in a child process, which prints what it has to say. If the child fails, this process ends
/// with its exit code. No other thread may run yet.
///   `what`  for the sentence: the model's path
///   errors  backend_failed (a signal ended the child: which), exhausted (no child could be made)
[[nodiscard]] Result<void> run_isolated(const std::string& what, const std::function<Result<void>()>& action);

}  // namespace headrace::cli
