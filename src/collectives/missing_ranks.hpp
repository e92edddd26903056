// SPDX-License-Identifier: Apache-2.0
// The texts of errors about ranks that have not come, or are gone.
#pragma once

#include "collectives/work_state.hpp"

#include <span>
#include <string>

namespace headrace::collectives {

/// "rank 1", "ranks 0 to 3 and 7". The ranks are in order, without doubles.
[[nodiscard]] std::string ranks_text(std::span<const int> ranks);
/// "50 ms"; "any time" if there is no limit.
[[nodiscard]] std::string duration_text(Timeout timeout);
/// "ranks 1 and 3 have not come within 50 ms". None: any rank.
[[nodiscard]] Error late(const Call& call, std::span<const int> ranks);
/// "rank 1 is gone: its process has ended, or it has left".
[[nodiscard]] Error gone(std::span<const int> ranks);

}  // namespace headrace::collectives
