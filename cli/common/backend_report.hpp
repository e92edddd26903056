// SPDX-License-Identifier: Apache-2.0
// A backend and its options, as `plugins` and `doctor` show them.
#pragma once

#include <headrace/agent.hpp>

#include "cli/common/table.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace headrace::cli {

using Json = nlohmann::ordered_json;

[[nodiscard]] std::string kinds_text(const BackendInfo& backend);  ///< "dram vram"
[[nodiscard]] std::string abilities_text(
    const BackendInfo& backend);  ///< "own agent, peers, notifications, mapping"
[[nodiscard]] Json backend_json(const BackendInfo& backend);
[[nodiscard]] Json option_json(const OptionInfo& option);
/// Columns: name, value, source of the value, and the sentence with unit and default.
[[nodiscard]] Table option_table(const std::vector<OptionInfo>& options);

}  // namespace headrace::cli
