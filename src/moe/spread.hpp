// SPDX-License-Identifier: Apache-2.0
// Which rank has which expert.
#pragma once

#include "moe/both_sides.hpp"

#include <stdint.h>

namespace headrace::moe {

/// The rank of an expert below first_expert[ranks].
///   first_expert  of each rank, ascending, and behind them the number of experts. A rank may have none
HEADRACE_BOTH_SIDES uint32_t rank_of_expert(const uint32_t* first_expert, uint32_t ranks, uint32_t expert) {
  uint32_t low = 0, high = ranks;  // first_expert[low] <= expert < first_expert[high]
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (first_expert[middle] <= expert ? low : high) = middle;
  }
  return low;
}

/// The first expert of a rank if all have equally many, the first ones one more than the last.
HEADRACE_BOTH_SIDES uint32_t first_of_even_spread(uint32_t experts, uint32_t ranks, uint32_t rank) {
  const uint32_t more = experts % ranks;
  return rank * (experts / ranks) + (rank < more ? rank : more);
}

}  // namespace headrace::moe
