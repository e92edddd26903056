// SPDX-License-Identifier: Apache-2.0
// What `headrace tune` has measured, and the entries that follow from it.
#pragma once

#include <headrace/comm_tuning.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::cli {

/// One operation with elements of one width and of one size, by each backend.
struct TunedRow {
  CommOperation operation;
  int dtype_bytes = 0;
  std::uint64_t bytes = 0;                     ///< as entries count them
  std::map<std::string, double> seconds = {};  ///< by backend; one that cannot run it is missing
};

/// The operations that entries name.
[[nodiscard]] std::optional<CommOperation> tuned_operation(std::string_view name);

/// The backend that takes the shortest time; nullopt: none was measured.
[[nodiscard]] std::optional<std::string> fastest_in(const TunedRow& row);

/// The entries for rows, whose sizes rise. The backend changes only where another one is clearly faster, so
/// that noise makes no entries. `common`: what all entries have. `by_width`: elements of several widths were
/// measured.
[[nodiscard]] std::vector<CommTuningEntry> entries_of(std::span<const TunedRow> rows,
                                                      const CommTuningEntry& common, bool by_width);

/// The fresh entries, then the old ones of other GPUs, numbers of ranks and operations.
[[nodiscard]] std::vector<CommTuningEntry> merged(std::vector<CommTuningEntry> fresh,
                                                  std::span<const CommTuningEntry> old);

}  // namespace headrace::cli
