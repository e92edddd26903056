// SPDX-License-Identifier: Apache-2.0
// One mask for all: a word in the window of the lowest rank has a bit for each rank without which the others
// go on. It is changed by compare and exchange alone, by ranks that are not out themselves. So of two ranks
// that wait for each other in vain one goes on, and at least one rank always does.
#pragma once

#include "moe/both_sides.hpp"

#include <stdint.h>

namespace headrace::moe {

/// The word after a vote of `voter` against `ranks`. Unchanged if the voter is out.
HEADRACE_BOTH_SIDES uint64_t after_vote(uint64_t out, uint32_t voter, uint64_t ranks) {
  return (out >> voter & 1) != 0 ? out : out | ranks;
}

}  // namespace headrace::moe
