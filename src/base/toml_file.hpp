// SPDX-License-Identifier: Apache-2.0
// A TOML file as a flat map from dotted names to text: options need no more of TOML.
#pragma once

#include "base/errors.hpp"

#include <map>
#include <string>

namespace headrace {

struct TomlEntry {
  std::string text;  ///< numbers and booleans as written in TOML, arrays joined by commas
  int line = 0;
};

/// Reads `path`. `[tcp] sockets = 4` becomes "tcp.sockets" -> "4".
///   errors   not_found (no such file), invalid_argument (not TOML: the line; dates and arrays of tables)
[[nodiscard]] Result<std::map<std::string, TomlEntry>> read_toml(const std::string& path);

}  // namespace headrace
