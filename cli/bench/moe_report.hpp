// SPDX-License-Identifier: Apache-2.0
// What rank 0 of `headrace bench moe` prints: a table, or a line of JSON for each figure.
#pragma once

#include "cli/bench/moe_bench.hpp"

#include <memory>
#include <string>

namespace headrace::cli {

/// How the ranks run.
struct MoERun {
  std::string how;           ///< "threads", "processes"
  std::string command_line;  ///< for the rows
};
[[nodiscard]] std::unique_ptr<MoEReport> moe_table(const MoERun& run);
/// The rows of bench/results.
[[nodiscard]] std::unique_ptr<MoEReport> moe_rows(const MoERun& run);
/// The same rows in a file, beside another report.
///   errors  invalid_argument (the file cannot be written)
[[nodiscard]] Result<std::unique_ptr<MoEReport>> moe_rows_in_file(const MoERun& run, const std::string& path,
                                                                  std::unique_ptr<MoEReport> beside);

}  // namespace headrace::cli
