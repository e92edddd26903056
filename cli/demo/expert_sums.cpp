// SPDX-License-Identifier: Apache-2.0
// This file alone is compiled without fused steps.
#include "cli/demo/expert_sums.hpp"

#include <algorithm>
#include <optional>

namespace headrace::cli::demo {
namespace {

void add_to(std::optional<float>& sum, float term) { sum = sum ? *sum + term : term; }

/// One element of the sum of one rank; none if the rank has no expert of the token.
std::optional<float> partial(std::span<const ExpertResult> results, int rank, std::size_t at) {
  std::optional<float> sum;
  for (const ExpertResult& result : results)
    if (result.rank == rank) add_to(sum, result.weight * result.row[at]);
  return sum;
}

}  // namespace

void add_results(std::span<const ExpertResult> results, std::span<float> x) {
  const int last = std::ranges::max(results, {}, &ExpertResult::rank).rank;
  for (std::size_t at = 0; at < x.size(); ++at) {
    std::optional<float> sum;
    for (int rank = 0; rank <= last; ++rank)
      if (const auto of_rank = partial(results, rank, at)) add_to(sum, *of_rank);
    x[at] = *sum + x[at];
  }
}

}  // namespace headrace::cli::demo
