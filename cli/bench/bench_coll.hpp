// SPDX-License-Identifier: Apache-2.0
// `headrace bench coll`: measures operations of communicators, with the columns of nccl-tests.
#pragma once

#include "cli/command.hpp"

namespace headrace::cli {

void add_bench_coll(const Command& bench, Invocation& invocation);

}  // namespace headrace::cli
