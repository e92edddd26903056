// SPDX-License-Identifier: Apache-2.0
// `headrace bench pages` measures how fast pages move between two processes of this machine.
#pragma once

#include "cli/command.hpp"

namespace headrace::cli {

void add_bench_pages(const Command& bench, Invocation& invocation);

}  // namespace headrace::cli
