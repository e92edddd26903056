// SPDX-License-Identifier: Apache-2.0
// `headrace doctor --paths`: measures which path pages take between two processes of this machine, and how
// fast it is, for each pair of memory kinds.
#pragma once

#include <headrace/result.hpp>

namespace headrace::cli {

struct Invocation;

/// Moves and compares pages between two processes for each pair, and prints one line a pair. A pair without a
/// path has a line too.
///   errors   those of starting the two processes; corrupt (wrong data)
Result<void> survey_paths(const Invocation& invocation, bool json);

}  // namespace headrace::cli
