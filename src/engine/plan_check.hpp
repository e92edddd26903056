// SPDX-License-Identifier: Apache-2.0
// Checks of a request's plan before a path is looked for.
#pragma once

#include "engine/request_plan.hpp"

#include <span>

namespace headrace::engine {

/// Checks that the two sides belong together, and fills in `bytes` and `grid`.
///   errors  invalid_argument, at the page where it is one page's fault
[[nodiscard]] Result<void> complete_plan(RequestPlan& plan);
/// invalid_argument, at the page, if pages of the destination overlap. Costs a sort.
[[nodiscard]] Result<void> check_overlap(const RequestPlan& plan);

// --- of the parts of one request

/// Finds pages of several parts that are read to one place, which a check of single parts cannot see.
[[nodiscard]] Result<void> check_overlap_of_parts(std::span<const RequestPlan> plans);
/// invalid_argument if two parts are of one peer.
[[nodiscard]] Result<void> check_peers_differ(std::span<const RequestPlan> plans);

}  // namespace headrace::engine
