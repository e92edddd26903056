// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator agree on a split.
#pragma once

#include "collectives/exchange.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::collectives {

/// The position of `rank` in the group; -1: the group is empty.
///   errors  invalid_argument (it is not in the group; a rank twice, or out of range)
[[nodiscard]] Result<int> index_in_group(std::span<const int> group, int rank, int size);

/// The ranks that are not excluded.
///   errors  invalid_argument (a rank twice, out of range, or this one)
[[nodiscard]] Result<std::vector<int>> ranks_left(std::span<const int> excluded, int rank, int size);

/// Every rank gets the texts of all, which may differ in length.
[[nodiscard]] Result<void> gather_texts(Exchange& exchange, const std::string& mine,
                                        std::vector<std::string>& all);

}  // namespace headrace::collectives
