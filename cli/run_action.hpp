// SPDX-License-Identifier: Apache-2.0
// How a command ends: what came of its action, and whether the standard output has taken all of it.
#pragma once

#include <headrace/result.hpp>

#include <functional>

namespace headrace::cli {

/// Runs what was chosen. 0, or 1 after an error, which stderr tells.
int run_action(const std::function<Result<void>()>& action);

/// 0, or 1 if the standard output does not take what is still to be written: stderr says why.
int flush_output();

}  // namespace headrace::cli
