// SPDX-License-Identifier: Apache-2.0
#include "moe/replicas.hpp"

#include "base/errors.hpp"
#include "moe/balance.hpp"
#include "moe/spread.hpp"

#include <algorithm>

namespace headrace::moe {

Result<void> check_tables(const MoEReplicas& replicas, int places) {
  if (replicas.experts < 1 || replicas.experts > places)
    return make_error(
        Code::invalid_argument,
        "replicas has {} experts, expected 1 to the {} of the configuration, which are its places",
        replicas.experts, places);
  if (replicas.first == nullptr || replicas.places == nullptr)
    return make_error(Code::invalid_argument, "replicas has no places, or they do not begin at 0");
  const bool is_known = replicas.choice == MoEChoice::in_turn || replicas.choice == MoEChoice::least_loaded ||
                        replicas.choice == MoEChoice::by_share;
  if (!is_known || (replicas.choice == MoEChoice::by_share && replicas.until == nullptr))
    return make_error(Code::invalid_argument,
                      "choice of replicas is {} ({}), expected in_turn, least_loaded, or by_share with until",
                      static_cast<int>(replicas.choice), moe_choice_name(replicas.choice));
  return {};
}

Result<void> check_replicas(const MoEReplicas& replicas, int places) {
  HEADRACE_TRY_VOID(check_tables(replicas, places));
  if (replicas.first[0] != 0)
    return make_error(Code::invalid_argument, "replicas has no places, or they do not begin at 0");
  for (int expert = 0; expert < replicas.experts; ++expert) {
    const std::int32_t begin = replicas.first[expert], end = replicas.first[expert + 1];
    if (end <= begin || end - begin > places)
      return make_error(Code::invalid_argument, "expert {} has {} places in replicas, expected 1 to {}",
                        expert, end - begin, places);
    for (std::int32_t i = begin; i < end; ++i)
      if (replicas.places[i] < 0 || replicas.places[i] >= places)
        return make_error(Code::invalid_argument, "expert {} has place {} in replicas, expected 0 to {}",
                          expert, replicas.places[i], places - 1);
  }
  return {};
}

void ReplicaChooser::begin(const MoEReplicas& replicas, const Spread& spread, std::uint32_t rank,
                           Mask active) {
  replicas_ = &replicas, spread_ = &spread, active_ = active;
  group_ = rank / spread.group_size;
  std::ranges::fill(orders_, 0);
  std::ranges::fill(loads_, 0);
  if (replicas.loads != nullptr) std::copy_n(replicas.loads, loads_.size(), loads_.begin());
}

std::uint32_t ReplicaChooser::rank_of(std::int32_t place) const {
  return rank_of_expert(spread_->first_expert.data(), spread_->ranks, static_cast<std::uint32_t>(place));
}

std::uint32_t ReplicaChooser::place_of(std::uint32_t expert) {
  const std::int32_t begin = replicas_->first[expert];
  const auto count = static_cast<std::uint32_t>(replicas_->first[expert + 1] - begin);
  const std::int32_t* const places = replicas_->places + begin;
  std::uint32_t replica = choose(expert, places, count, orders_[expert]++);
  for (std::uint32_t i = 0; i < count; ++i, replica = (replica + 1) % count)
    if ((active_ & bit_of(rank_of(places[replica]))) != 0) break;
  ++loads_[rank_of(places[replica])];
  return static_cast<std::uint32_t>(places[replica]);
}

std::uint32_t ReplicaChooser::choose(std::uint32_t expert, const std::int32_t* places, std::uint32_t count,
                                     std::uint64_t order) const {
  if (replicas_->choice == MoEChoice::in_turn) return replica_in_turn(group_, order, count);
  if (replicas_->choice == MoEChoice::least_loaded) return least_loaded(places, count);
  const auto before =
      replicas_->before == nullptr ? 0 : static_cast<std::uint64_t>(replicas_->before[expert]);
  return replica_by_share(replicas_->until + replicas_->first[expert], count, before + order);
}

/// The first one of those that take part, else the first.
std::uint32_t ReplicaChooser::least_loaded(const std::int32_t* places, std::uint32_t count) const {
  std::uint32_t best = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t rank = rank_of(places[i]);
    if ((active_ & bit_of(rank)) == 0) continue;
    if (best == count || loads_[rank] < loads_[rank_of(places[best])]) best = i;
  }
  return best == count ? 0 : best;
}

}  // namespace headrace::moe
