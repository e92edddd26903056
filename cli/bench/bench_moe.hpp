// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.hpp"

namespace headrace::cli {

/// Adds `headrace bench moe`.
void add_bench_moe(const Command& bench, Invocation& invocation);

}  // namespace headrace::cli
