// SPDX-License-Identifier: Apache-2.0
// Where the ranks of `headrace bench coll` and `bench moe` come from: threads of this process, processes that
// it starts, or processes of a launcher such as torchrun, of which this is one.
#pragma once

#include "cli/common/errors.hpp"

#include <functional>
#include <optional>
#include <string>

namespace headrace::cli {

/// One rank, and where it meets the others.
struct RankPlace {
  int rank = 0, ranks = 1;
  std::string meeting = {};
};

/// Runs the ranks as threads. Returns the error of the rank that failed first by itself: the others then hear
/// of it.
[[nodiscard]] Result<void> run_as_threads(int ranks,
                                          const std::function<Result<void>(const RankPlace& place)>& run);
/// The same for some of the ranks: so many from this one on. The others run elsewhere.
[[nodiscard]] Result<void> run_as_threads(const RankPlace& first, int count,
                                          const std::function<Result<void>(const RankPlace& place)>& run);
/// Runs this program again for each rank, with its own arguments and `--rank N --meeting PLACE` behind them.
/// Every one prints its own error.
///   errors  backend_failed (which ranks failed, and how)
[[nodiscard]] Result<void> run_as_processes(int ranks);
/// The rank that a launcher has started; nullopt: none has.
///   meeting  instead of the launcher's; empty: the launcher's
///   errors   invalid_argument (half of a launcher's variables; no meeting place)
[[nodiscard]] Result<std::optional<RankPlace>> launched_rank(const std::string& meeting);

}  // namespace headrace::cli
