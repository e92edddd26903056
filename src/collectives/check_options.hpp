// SPDX-License-Identifier: Apache-2.0
// What holds for the options of a communicator of any backend.
#pragma once

#include <headrace/comm.hpp>

#include <string>
#include <vector>

namespace headrace::collectives {

///   errors  invalid_argument (empty, too long, not UTF-8, a control character)
[[nodiscard]] Result<void> check_name(const std::string& name);
/// Name, rank and size.
///   errors  invalid_argument
[[nodiscard]] Result<void> check_options(const CommOptions& options);

/// 0 to size - 1: the ranks of a communicator that no other one has made.
[[nodiscard]] std::vector<int> all_ranks(int size);

}  // namespace headrace::collectives
