// SPDX-License-Identifier: Apache-2.0
#include "moe/plan.hpp"

#include "base/errors.hpp"
#include "moe/balance.hpp"
#include "moe/config.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace headrace {
namespace {

/// Of 64 groups and 4096 experts the sum has 63 bits.
constexpr std::int64_t most_count = std::int64_t{1} << 44;

/// Places of the ranks that take part, side by side, as plan_replicas wants them.
struct PlacesInUse {
  PlacesInUse(const moe::Spread& spread, moe::Mask active) {
    for (std::uint32_t rank = 0; rank < spread.ranks; ++rank) {
      if ((active & moe::bit_of(rank)) == 0) continue;
      ranks.push_back(rank);
      for (std::uint32_t place = spread.first_expert[rank]; place < spread.first_expert[rank + 1]; ++place)
        places.push_back(place);
      first.push_back(static_cast<std::uint32_t>(places.size()));
    }
    experts.resize(places.size()), entries.resize(places.size()), loads.resize(ranks.size());
  }
  std::vector<std::uint32_t> ranks, places;  // by their numbers in the configuration
  std::vector<std::uint32_t> first{0};       // of each rank among `places`
  std::vector<std::int32_t> experts;
  std::vector<std::int64_t> entries, loads;
};

/// Where each expert is kept among the places in use: the first one; no_place: nowhere.
std::vector<std::uint32_t> homes_in_use(const PlacesInUse& in_use, std::size_t experts) {
  std::vector<std::uint32_t> homes(experts, moe::no_place);
  for (std::size_t i = in_use.experts.size(); i-- > 0;)
    if (in_use.experts[i] != moe::no_expert)
      homes[static_cast<std::size_t>(in_use.experts[i])] = static_cast<std::uint32_t>(i);
  return homes;
}

Result<void> check_counts_of_plan(std::span<const std::int64_t> counts, std::size_t groups,
                                  std::size_t experts) {
  if (counts.size() != groups * experts)
    return make_error(Code::invalid_argument, "{} counts are given, expected {} groups * {} experts",
                      counts.size(), groups, experts);
  const auto wrong =
      std::ranges::find_if(counts, [](std::int64_t count) { return count < 0 || count > most_count; });
  if (wrong != counts.end())
    return make_error(Code::invalid_argument, "a count is {}, expected 0 to {}", *wrong, most_count);
  return {};
}

/// Exchanges free places of a rank, so that replicas that it holds stay where they are.
void keep_places(PlacesInUse& in_use, const moe::PlanInput& input) {
  const auto is_free = [&](std::uint32_t i) { return input.experts[in_use.places[i]] == moe::no_expert; };
  for (std::size_t rank = 0; rank < in_use.ranks.size(); ++rank)
    for (std::uint32_t i = in_use.first[rank]; i < in_use.first[rank + 1]; ++i) {
      const std::int32_t held = input.held[in_use.places[i]];
      if (!is_free(i) || held == moe::no_expert || in_use.experts[i] == held) continue;
      for (std::uint32_t other = in_use.first[rank]; other < in_use.first[rank + 1]; ++other) {
        if (!is_free(other) || in_use.experts[other] != held) continue;
        std::swap(in_use.experts[i], in_use.experts[other]);
        std::swap(in_use.entries[i], in_use.entries[other]);
        break;
      }
    }
}

/// Shares by place become a table by expert.
void make_table(MoEPlan& plan, std::span<const std::int64_t> entries, std::size_t experts) {
  plan.first.assign(experts + 1, 0);
  for (const std::int32_t expert : plan.experts)
    if (expert != moe::no_expert) ++plan.first[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(plan.first.begin(), plan.first.end(), plan.first.begin());
  plan.places.resize(static_cast<std::size_t>(plan.first.back()));
  plan.until.resize(plan.places.size());
  std::vector<std::int32_t> next(plan.first.begin(), plan.first.end() - 1);
  std::vector<std::int64_t> until(experts);
  for (std::size_t place = 0; place < plan.experts.size(); ++place) {
    if (plan.experts[place] == moe::no_expert) continue;
    const auto expert = static_cast<std::size_t>(plan.experts[place]);
    const auto at = static_cast<std::size_t>(next[expert]++);
    plan.places[at] = static_cast<std::int32_t>(place);
    plan.until[at] = until[expert] += entries[place];
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
  return moe::make_plan(config, {.experts = experts, .counts = counts});
}

Result<std::size_t> moe::count_experts(const MoEConfig& config, std::span<const std::int32_t> experts) {
  if (experts.size() != static_cast<std::size_t>(config.experts))
    return make_error(Code::invalid_argument, "{} places are given, expected those of the configuration, {}",
                      experts.size(), config.experts);
  const std::int32_t most = *std::ranges::max_element(experts);
  if (*std::ranges::min_element(experts) < no_expert || most >= std::ssize(experts) || most < 0)
    return make_error(Code::invalid_argument,
                      "the experts of places are up to {}, expected -1 to {}, and one at least", most,
                      experts.size() - 1);
  std::vector<bool> has_place(static_cast<std::size_t>(most) + 1);
  for (const std::int32_t expert : experts)
    if (expert != no_expert) has_place[static_cast<std::size_t>(expert)] = true;
  const auto missing = std::ranges::find(has_place, false);
  if (missing == has_place.end()) return has_place.size();
  return make_error(Code::invalid_argument, "expert {} has no place: give each one at least",
                    missing - has_place.begin());
}

Result<MoEPlan> moe::make_plan(const MoEConfig& config, const PlanInput& input) {
  HEADRACE_TRY(experts, count_experts(config, input.experts));
  HEADRACE_TRY_VOID(check_counts_of_plan(input.counts, static_cast<std::size_t>(config.groups()), experts));

  MoEPlan plan;
  plan.experts.assign(input.experts.begin(), input.experts.end());
  plan.loads.resize(static_cast<std::size_t>(config.ranks));
  std::vector<std::int64_t> sums(experts), entries(input.experts.size());
  for (std::size_t i = 0; i < input.counts.size(); ++i) {
    plan.before.push_back(sums[i % experts]);
    sums[i % experts] += input.counts[i];
  }

  PlacesInUse in_use(spread_of(config), input.active);
  for (std::size_t i = 0; i < in_use.places.size(); ++i) in_use.experts[i] = input.experts[in_use.places[i]];
  const std::vector<std::uint32_t> homes = homes_in_use(in_use, experts);
  for (std::size_t expert = 0; expert < experts; ++expert)
    if (homes[expert] != no_place) in_use.entries[homes[expert]] = sums[expert];
  for (std::size_t rank = 0; rank < in_use.ranks.size(); ++rank)
    for (std::uint32_t i = in_use.first[rank]; i < in_use.first[rank + 1]; ++i)
      in_use.loads[rank] += in_use.entries[i];
  PlanArrays arrays{static_cast<std::uint32_t>(in_use.ranks.size()), in_use.first.data(),
                    in_use.experts.data(), in_use.entries.data(), in_use.loads.data()};
  plan_replicas(arrays);
  if (!input.held.empty()) keep_places(in_use, input);

  for (std::size_t i = 0; i < in_use.places.size(); ++i) {
    plan.experts[in_use.places[i]] = in_use.experts[i];
    entries[in_use.places[i]] = in_use.entries[i];
  }
  for (std::size_t i = 0; i < in_use.ranks.size(); ++i) plan.loads[in_use.ranks[i]] = in_use.loads[i];
  make_table(plan, entries, experts);
  return plan;
}

}  // namespace headrace
