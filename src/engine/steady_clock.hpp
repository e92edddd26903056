// SPDX-License-Identifier: Apache-2.0
// The time of this host, for those that are given no other clock.
#pragma once

#include "base/clock.hpp"

namespace headrace::engine {

inline const SteadyClock steady_clock{};  // not constexpr: GCC 12 rejects its implicit destructor

}  // namespace headrace::engine
