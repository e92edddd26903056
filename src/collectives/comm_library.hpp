// SPDX-License-Identifier: Apache-2.0
// Backends of communicators in shared objects: `libheadrace_comm_<name>.so`.
#pragma once

#include <headrace/plugin/comm_v1.h>
#include <headrace/result.hpp>

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace headrace::collectives {

/// Whether it is [a-z0-9_]+, of at most 64 letters.
[[nodiscard]] bool is_backend_name(std::string_view name);

/// A copy of a table, whose version, name and required entries are right.
///   errors  not_supported (what is wrong)
[[nodiscard]] Result<headrace_comm_backend_v1> check_comm_table(const headrace_comm_backend_v1* table,
                                                                std::string_view expected_name);

/// The table of the library of that name: the one that HEADRACE_COMM_LIB_<NAME> names, else the first in the
/// folders of plugins. nullopt: there is none. `where`, if given, gets the path, also of one that is refused.
///   errors  not_supported (it does not load, or its table is wrong), not_found (the variable's file is not
///           there)
[[nodiscard]] Result<std::optional<headrace_comm_backend_v1>> load_comm_library(const std::string& name,
                                                                                std::string* where = nullptr);

/// The names of the libraries in the folders of plugins.
[[nodiscard]] std::set<std::string> comm_libraries();

/// A sentence for those who look for the backend.
[[nodiscard]] std::string where_library_may_lie(const std::string& name);

}  // namespace headrace::collectives
