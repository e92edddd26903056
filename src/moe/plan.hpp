// SPDX-License-Identifier: Apache-2.0
// moe_plan for ranks that come and go, and for places that hold replicas of an earlier plan.
#pragma once

#include "moe/routing.hpp"

#include <headrace/moe_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::moe {

/// What a plan is made from: as the arguments of moe_plan, and what is known besides.
struct PlanInput {
  std::span<const std::int32_t> experts;  ///< [config.experts]: that each place keeps; -1: it is free
  std::span<const std::int64_t> counts;   ///< [groups, experts]
  /// Ranks that take part: the others get no entries. An expert that none of these keeps has no shares.
  Mask active = ~Mask{0};
  /// [config.experts]: that each place holds now; -1: none. A replica that a rank holds stays in its place.
  std::span<const std::int32_t> held = {};
};

/// The number of experts that places keep, each of which has one.
///   errors  invalid_argument
[[nodiscard]] Result<std::size_t> count_experts(const MoEConfig& config,
                                                std::span<const std::int32_t> experts);

/// errors: invalid_argument
[[nodiscard]] Result<MoEPlan> make_plan(const MoEConfig& config, const PlanInput& input);

}  // namespace headrace::moe
