// SPDX-License-Identifier: Apache-2.0
// Variables of the environment and entries of the configuration file that look like options of Headrace and
// are none: a misspelt option is said, as it is where a caller has it.
#pragma once

#include "base/log.hpp"
#include "base/options.hpp"
#include "base/toml_file.hpp"

#include <map>
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

/// A sentence for each entry of the file `path` that lies in a table, that no table here has, and whose full
/// name is nearly that of an option. Others may be options of backends that are not open.
[[nodiscard]] std::vector<std::string> unknown_entries(const std::string& path,
                                                       const std::map<std::string, TomlEntry>& entries,
                                                       const std::vector<OptionTable>& tables);

/// Logs the sentences about the environment and the configuration file of this process, each once in its
/// life.
void warn_of_unknown_options(const Log& log, const std::vector<OptionTable>& tables);

}  // namespace headrace
