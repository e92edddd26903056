// SPDX-License-Identifier: Apache-2.0
// Variables of the environment that look like options of Headrace and are none: a misspelt option is said, as
// it is where a caller or a file has it.
#pragma once

#include "base/log.hpp"
#include "base/options.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// The options of one table.
struct OptionTable {
  std::string scope;  ///< "tcp"; "": those of the agent
  std::vector<OptionRow> rows;
  bool is_alone = true;  ///< no variable but those of its rows begins with its scope
};

/// A sentence for each variable of `environment` ("NAME=value") that no table has, and whose name is nearly
/// that of an option, or begins as those of a backend. Others begin with HEADRACE_, too: Kubernetes names
/// variables after a service, and Headrace has some that are no options.
[[nodiscard]] std::vector<std::string> unknown_variables(std::span<const std::string_view> environment,
                                                         const std::vector<OptionTable>& tables);

/// Logs the sentences about the environment of this process, each once in its life.
void warn_of_unknown_variables(const Log& log, const std::vector<OptionTable>& tables);

}  // namespace headrace
