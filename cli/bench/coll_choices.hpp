// SPDX-License-Identifier: Apache-2.0
// What of collectives a command line names: lists of operations, types and reductions, and ranges of sizes.
#pragma once

#include "cli/bench/coll_operation.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::cli {

/// The words between commas.
[[nodiscard]] std::vector<std::string> words_of(const std::string& list);

// "all" names every one.
//   errors  invalid_argument (there is none of that name: the nearest)

[[nodiscard]] Result<std::vector<const CollOperation*>> chosen_operations(const std::string& list);
[[nodiscard]] Result<std::vector<DType>> chosen_types(const std::string& list);
[[nodiscard]] Result<std::vector<ReduceOp::Kind>> chosen_reductions(const std::string& list);

/// "8-16M" by steps of a factor, or a list.
///   errors  invalid_argument
[[nodiscard]] Result<std::vector<std::uint64_t>> chosen_sizes(const std::string& text, unsigned factor);

}  // namespace headrace::cli
