// SPDX-License-Identifier: Apache-2.0
#include "moe/routing.hpp"

#include <algorithm>

namespace headrace::moe {

Spread spread_of(const MoEConfig& config) {
  Spread spread;
  spread.ranks = static_cast<std::uint32_t>(config.ranks);
  spread.group_size = static_cast<std::uint32_t>(config.group_size);
  spread.top_k = static_cast<std::uint32_t>(config.top_k);
  for (int rank = 0; rank <= config.ranks; ++rank)
    spread.first_expert.push_back(static_cast<std::uint32_t>(config.first_expert(rank)));
  return spread;
}

Routing::Routing(const MoEConfig& config, const WindowLayout& layout)
    : top_k_(layout.record.top_k),
      slots_(layout.slots),
      entries_(static_cast<std::size_t>(config.max_tokens) * top_k_),
      visits_(entries_.size()),
      visit_counts_(static_cast<std::size_t>(config.max_tokens)),
      counts_(static_cast<std::size_t>(config.experts)),
      records_for_(layout.ranks),
      next_slot_(layout.ranks),
      records_(layout.ranks),
      came_(layout.ranks),
      placed_(layout.ranks * slots_ * top_k_),
      placed_counts_(layout.ranks * slots_) {}

void Routing::route(const Spread& spread, std::uint32_t rank, std::uint64_t tokens, Mask active) {
  tokens_ = tokens;
  std::ranges::fill(counts_, 0);
  const std::uint32_t own_member = rank % spread.group_size;
  for (std::uint32_t member = 0; member < spread.group_size; ++member) {
    const TokenRange range = tokens_of_member(tokens, spread.group_size, member);
    std::ranges::fill(next_slot_, 0);
    for (std::uint64_t token = range.begin; token < range.end; ++token) {
      visit_counts_[token] = 0;
      for (RoutedEntry& entry : entries(token)) {
        if (entry.rank == no_rank || (active & bit_of(entry.rank)) == 0) continue;
        visit(token, entry.rank, next_slot_[entry.rank]);
        if (member == own_member) entry.order = counts_[spread.first_expert[entry.rank] + entry.expert]++;
      }
      for (const Visit& made : visits(token)) ++next_slot_[made.rank];
    }
    if (member == own_member) records_for_ = next_slot_;
  }
}

/// Once for each rank, in the order of the ranks.
void Routing::visit(std::uint64_t token, std::uint32_t rank, std::uint32_t slot) {
  const auto first = visits_.begin() + static_cast<std::ptrdiff_t>(token * top_k_);
  const auto end = first + visit_counts_[token];
  const auto place =
      std::lower_bound(first, end, rank, [](const Visit& a, std::uint32_t b) { return a.rank < b; });
  if (place != end && place->rank == rank) return;
  std::move_backward(place, end, end + 1);
  *place = {rank, slot};
  ++visit_counts_[token];
}

void Routing::begin_records(std::uint32_t source, std::uint64_t count) {
  records_[source] = came_[source] = count;
  std::fill_n(placed_counts_.begin() + static_cast<std::ptrdiff_t>(source * slots_), slots_, 0);
}

}  // namespace headrace::moe
