// SPDX-License-Identifier: Apache-2.0
// Recorded calls in the layout of torch's flight recorder, version 2.10, so that its analyzer, fr_trace,
// reads them.
#pragma once

#include "collectives/call_ring.hpp"

#include <nlohmann/json_fwd.hpp>

namespace headrace::collectives {

/// Keys that fr_trace does not know are ours: rank, operation, number, peer, tag, error.
[[nodiscard]] nlohmann::ordered_json trace_of(const CallRing::Snapshot& recorded, std::optional<int> rank);

}  // namespace headrace::collectives
