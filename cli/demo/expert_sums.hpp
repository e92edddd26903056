// SPDX-License-Identifier: Apache-2.0
// The sum of a token's experts as MoE makes it (include/headrace/moe.hpp), for one process that runs all
// ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::cli::demo {

/// The result of one expert for a token.
struct ExpertResult {
  int rank = 0;  ///< that has the expert
  float weight = 0;
  std::vector<float> row;
};

/// Adds the weighted results to x. Those of each rank are added in their order, then these sums in the order
/// of the ranks, then x; each product and each sum is rounded.
///   shapes  results: at least one; their rows are as long as x
void add_results(std::span<const ExpertResult> results, std::span<float> x);

}  // namespace headrace::cli::demo
