// SPDX-License-Identifier: Apache-2.0
// The size of a call as a table knows it. It depends only on what all ranks share, so all choose alike.
#pragma once

#include "choice/tuning.hpp"

#include <headrace/plugin/comm_v1.h>

namespace headrace::choice {

/// Of operations with a part for each rank, such as all_gather and scatter, one part counts; where parts
/// differ, the longest. all_to_all with lists or splits has no size that all ranks know: it counts as the
/// longest.
[[nodiscard]] CallSize size_of(const headrace_comm_call_v1& call, int ranks);

}  // namespace headrace::choice
