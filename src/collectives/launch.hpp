// SPDX-License-Identifier: Apache-2.0
// The place of this process among the ranks that a launcher has started, from the variables that it sets.
#pragma once

#include <headrace/comm.hpp>

#include <functional>
#include <optional>
#include <string>

namespace headrace::collectives {

/// Reads a variable of the environment.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// As CommOptions::from_environment.
[[nodiscard]] Result<CommOptions> launched_options(const Lookup& lookup);
/// As CommOptions::meeting_from_environment.
[[nodiscard]] Result<std::string> launched_meeting(const Lookup& lookup);

}  // namespace headrace::collectives
