// SPDX-License-Identifier: Apache-2.0
// `headrace doctor --paths`: which path pages take between two processes of this machine, for each pair of
// memories, and how fast it is here.
#pragma once

#include <headrace/result.hpp>

namespace headrace::cli {

struct Invocation;

/// Moves checked pages between two processes for each pair and prints what came of it. A pair that no path
/// joins is a line like the others.
///   errors   what keeps the two processes from starting at all
Result<void> survey_paths(const Invocation& invocation, bool json);

}  // namespace headrace::cli
