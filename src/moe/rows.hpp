// SPDX-License-Identifier: Apache-2.0
// Where the rows of an expert begin in the output of a dispatch.
#pragma once

#include "moe/layout.hpp"

namespace headrace::moe {

/// Rows by expert: the next expert's first row, when an expert with `count` rows begins at `first`.
HEADRACE_BOTH_SIDES uint64_t next_expert_at(uint64_t first, uint64_t count, uint64_t alignment) {
  return round_up(first + count, alignment);
}

/// The row of an entry; `before`: entries of earlier sources for its expert.
HEADRACE_BOTH_SIDES uint64_t row_of_entry(uint64_t first_of_expert, uint64_t before, uint64_t order) {
  return first_of_expert + before + order;
}

}  // namespace headrace::moe
