// SPDX-License-Identifier: Apache-2.0
#include <headrace/moe_plan.hpp>

#include "base/errors.hpp"
#include "moe/balance.hpp"
#include "moe/config.hpp"
#include "moe/routing.hpp"

#include <algorithm>
#include <cstddef>

namespace headrace {
namespace {

/// Of 64 groups and 4096 experts the sum has 63 bits.
constexpr std::int64_t most_count = std::int64_t{1} << 44;

/// The place that keeps each expert: the first one that holds it.
Result<std::vector<std::int32_t>> homes_of(std::span<const std::int32_t> experts) {
  const std::int32_t most = *std::ranges::max_element(experts);
  if (*std::ranges::min_element(experts) < moe::no_expert || most >= std::ssize(experts) || most < 0)
    return make_error(Code::invalid_argument,
                      "the experts of places are up to {}, expected -1 to {}, and one at least", most,
                      experts.size() - 1);
  std::vector<std::int32_t> homes(static_cast<std::size_t>(most) + 1, -1);
  for (std::size_t place = experts.size(); place-- > 0;)
    if (experts[place] != moe::no_expert)
      homes[static_cast<std::size_t>(experts[place])] = static_cast<std::int32_t>(place);
  const auto missing = std::ranges::find(homes, -1);
  if (missing == homes.end()) return homes;
  return make_error(Code::invalid_argument, "expert {} has no place: give each one at least",
                    missing - homes.begin());
}

/// Shares by place become a table by expert.
void make_table(MoEPlan& plan, std::span<const std::int64_t> entries, std::size_t experts) {
  plan.first.assign(1, 0);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    std::int64_t until = 0;
    for (std::size_t place = 0; place < plan.experts.size(); ++place) {
      if (plan.experts[place] != static_cast<std::int32_t>(expert)) continue;
      plan.places.push_back(static_cast<std::int32_t>(place));
      plan.until.push_back(until += entries[place]);
    }
    plan.first.push_back(static_cast<std::int32_t>(plan.places.size()));
  }
}

}  // namespace

MoEReplicas MoEPlan::of_group(int group) const {
  const std::size_t count = first.size() - 1;
  MoEReplicas replicas;
  replicas.experts = static_cast<int>(count);
  replicas.first = first.data(), replicas.places = places.data();
  replicas.choice = MoEChoice::by_share;
  replicas.until = until.data();
  replicas.before = before.data() + static_cast<std::size_t>(group) * count;
  return replicas;
}

Result<MoEPlan> moe_plan(const MoEConfig& config, std::span<const std::int32_t> experts,
                         std::span<const std::int64_t> counts) {
  HEADRACE_TRY_VOID(config.check());
  if (experts.size() != static_cast<std::size_t>(config.experts))
    return make_error(Code::invalid_argument, "{} places are given, expected those of the configuration, {}",
                      experts.size(), config.experts);
  HEADRACE_TRY(homes, homes_of(experts));
  const std::size_t groups = static_cast<std::size_t>(config.groups());
  if (counts.size() != groups * homes.size())
    return make_error(Code::invalid_argument, "{} counts are given, expected {} groups * {} experts",
                      counts.size(), groups, homes.size());
  const auto wrong =
      std::ranges::find_if(counts, [](std::int64_t count) { return count < 0 || count > most_count; });
  if (wrong != counts.end())
    return make_error(Code::invalid_argument, "a count is {}, expected 0 to {}", *wrong, most_count);
  MoEPlan plan;
  plan.experts.assign(experts.begin(), experts.end());
  plan.loads.resize(static_cast<std::size_t>(config.ranks));
  std::vector<std::int64_t> sums(homes.size()), entries(experts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    plan.before.push_back(sums[i % homes.size()]);
    sums[i % homes.size()] += counts[i];
  }
  const moe::Spread spread = moe::spread_of(config);
  for (std::size_t expert = 0; expert < homes.size(); ++expert)
    entries[static_cast<std::size_t>(homes[expert])] = sums[expert];
  for (std::size_t rank = 0; rank < plan.loads.size(); ++rank)
    for (std::uint32_t place = spread.first_expert[rank]; place < spread.first_expert[rank + 1]; ++place)
      plan.loads[rank] += entries[place];
  moe::PlanArrays arrays{static_cast<std::uint32_t>(config.ranks), spread.first_expert.data(),
                         plan.experts.data(), entries.data(), plan.loads.data()};
  moe::plan_replicas(arrays);
  make_table(plan, entries, homes.size());
  return plan;
}

}  // namespace headrace
