// SPDX-License-Identifier: Apache-2.0
// `headrace bench fabric` measures a fabric between two processes, on one machine or on two.
#pragma once

#include "cli/command.hpp"

namespace headrace::cli {

void add_bench_fabric(const Command& bench, Invocation& invocation);

}  // namespace headrace::cli
