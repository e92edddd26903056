// SPDX-License-Identifier: Apache-2.0
// Experts that several ranks hold, so that all ranks get equally many rows.
#pragma once

#include <headrace/moe.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

/// A table of replicas for one step, made from this step's routing. All ranks make the same one from the same
/// input. The caller brings the weights of `experts` to places that had none, or others.
struct MoEPlan {
  std::vector<std::int32_t> experts;  ///< that each place holds; -1: none
  std::vector<std::int64_t> loads;    ///< of each rank: entries that it gets
  std::vector<std::int32_t> first, places;
  std::vector<std::int64_t> until, before;

  /// The table for the tokens of one group of ranks. Points into this object.
  [[nodiscard]] HEADRACE_API MoEReplicas of_group(int group) const;
};

/// Moves entries for hot experts from busy ranks to free places of idle ones, until no rank has more than its
/// share (the mean, rounded up) or there is no free place for more. One or two free places a rank suffice as
/// a rule.
///   config   its experts are the places
///   experts  [config.experts]: that each place holds, 0 and up; -1: it is free. Each expert has a place,
///   which
///            keeps it
///   counts   [groups, experts]: how many entries of the tokens of each group name each expert in this step
///   errors   invalid_argument
HEADRACE_API Result<MoEPlan> moe_plan(const MoEConfig& config, std::span<const std::int32_t> experts,
                                      std::span<const std::int64_t> counts);

}  // namespace headrace
