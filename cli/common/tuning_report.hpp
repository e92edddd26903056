// SPDX-License-Identifier: Apache-2.0
// The table by which backend `auto` chooses, as `doctor` and `tune` show it.
#pragma once

#include <headrace/comm_tuning.hpp>

#include "cli/common/table.hpp"

#include <nlohmann/json.hpp>

#include <span>

namespace headrace::cli {

/// As the file has it.
[[nodiscard]] nlohmann::ordered_json tuning_entry_json(const CommTuningEntry& entry);
/// A line for each entry, in the order in which they decide.
[[nodiscard]] Table tuning_table(std::span<const CommTuningEntry> entries);

}  // namespace headrace::cli
