// SPDX-License-Identifier: Apache-2.0
// Experts that several ranks hold: which of them an entry goes to, and a plan that gives no rank more entries
// than its share. A place is an expert of the configuration: weights on a rank. Tokens name experts, a table
// says which places hold each of them.
#pragma once

#include "moe/both_sides.hpp"

#include <stdint.h>

namespace headrace::moe {

/// In turn: the replica, of `count`, for an entry with `order` entries of its group for the same expert
/// before it. Groups begin at different ones.
HEADRACE_BOTH_SIDES uint32_t replica_in_turn(uint64_t group, uint64_t order, uint32_t count) {
  return static_cast<uint32_t>((group + order) % count);
}

/// By share: the replica for the entry with this number among those of all groups for the expert.
///   until  of each replica: the entries that go to it and to those before it. Beyond the last one the
///          numbers begin anew
HEADRACE_BOTH_SIDES uint32_t replica_by_share(const int64_t* until, uint32_t count, uint64_t number) {
  const auto all = static_cast<uint64_t>(until[count - 1]);
  const uint64_t of = all == 0 ? 0 : number % all;
  uint32_t replica = 0;
  while (replica + 1 < count && of >= static_cast<uint64_t>(until[replica])) ++replica;
  return replica;
}

inline constexpr int32_t no_expert = -1;
inline constexpr uint32_t no_place = ~uint32_t{0};

/// What a plan is made of. The arrays are the caller's.
struct PlanArrays {
  uint32_t ranks;
  const uint32_t* first_place;  ///< of each rank, and the number of places
  int32_t* experts;             ///< [places]: that each holds; no_expert: it is free
  int64_t* entries;             ///< [places]: that go to each
  int64_t* loads;               ///< [ranks]: the sums of `entries`
};

/// The place of a rank that holds an expert, else a free one, else no_place.
HEADRACE_BOTH_SIDES uint32_t place_for(const PlanArrays& plan, uint32_t rank, int32_t expert) {
  uint32_t free = no_place;
  for (uint32_t place = plan.first_place[rank]; place < plan.first_place[rank + 1]; ++place) {
    if (plan.experts[place] == expert) return place;
    if (plan.experts[place] == no_expert && free == no_place) free = place;
  }
  return free;
}

/// The place of a rank with the most entries.
HEADRACE_BOTH_SIDES uint32_t fullest_place(const PlanArrays& plan, uint32_t rank) {
  uint32_t fullest = plan.first_place[rank];
  for (uint32_t place = fullest; place < plan.first_place[rank + 1]; ++place)
    if (plan.entries[place] > plan.entries[fullest]) fullest = place;
  return fullest;
}

HEADRACE_BOTH_SIDES uint32_t busiest_rank(const PlanArrays& plan) {
  uint32_t busiest = 0;
  for (uint32_t rank = 1; rank < plan.ranks; ++rank)
    if (plan.loads[rank] > plan.loads[busiest]) busiest = rank;
  return busiest;
}

/// The rank with the least to do that can hold an expert; plan.ranks: none.
HEADRACE_BOTH_SIDES uint32_t idlest_rank_for(const PlanArrays& plan, int32_t expert) {
  uint32_t idlest = plan.ranks;
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
    if (place_for(plan, rank, expert) == no_place) continue;
    if (idlest == plan.ranks || plan.loads[rank] < plan.loads[idlest]) idlest = rank;
  }
  return idlest;
}

/// Fills the share of the idlest rank from the busiest one, with a replica in a free place, until no rank has
/// more than its share, or there is no free place for more. A rank that gives may then have less than its
/// share, and gets from another one: so a rank uses few places, as in the alias method. Each step takes
/// something from what is above a share, so there is an end. All ranks get the same from the same input.
HEADRACE_BOTH_SIDES void plan_replicas(PlanArrays& plan) {
  int64_t all = 0;
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) all += plan.loads[rank];
  const int64_t share = (all + plan.ranks - 1) / plan.ranks;
  while (true) {
    const uint32_t from = busiest_rank(plan);
    if (plan.loads[from] <= share) return;
    const uint32_t place = fullest_place(plan, from);
    const uint32_t to = idlest_rank_for(plan, plan.experts[place]);
    if (to == plan.ranks || plan.loads[to] >= share) return;
    const int64_t room = share - plan.loads[to];
    const int64_t moved = room < plan.entries[place] ? room : plan.entries[place];
    const uint32_t replica = place_for(plan, to, plan.experts[place]);
    plan.experts[replica] = plan.experts[place];
    plan.entries[replica] += moved, plan.entries[place] -= moved;
    plan.loads[to] += moved, plan.loads[from] -= moved;
  }
}

}  // namespace headrace::moe
