// SPDX-License-Identifier: Apache-2.0
// The measuring of `headrace tune`: each operation by each backend, as `headrace bench coll` measures it.
#pragma once

#include "cli/bench/bench_ranks.hpp"
#include "cli/bench/coll_operation.hpp"
#include "cli/tune/tuned_rows.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace headrace::cli {

/// What is measured; the same on all ranks.
struct TunePlan {
  std::vector<std::string> backends;
  std::vector<const CollOperation*> operations;
  std::vector<std::uint64_t> sizes;
  std::vector<DType> types;
  double seconds;
  int ranks;
  std::string device = "cuda";
};

/// What rank 0 has measured, row by row.
struct Tuned {
  std::vector<TunedRow> rows = {};
  std::set<std::string> refusals = {};
  std::optional<Error> wrong = {};  ///< a backend that computes wrong elements
};

/// Adds the rows of one operation. All ranks call it. A backend that cannot run the operation, or does not
/// open, is left out.
///   tuned  that of rank 0 is filled
void measure_operation(const TunePlan& plan, const RankPlace& place, const CollOperation& operation,
                       DType type, Tuned& tuned);

}  // namespace headrace::cli
