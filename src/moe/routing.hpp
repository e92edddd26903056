// SPDX-License-Identifier: Apache-2.0
// What a dispatch has learnt: where the tokens of this rank went, and which rows came for which records.
#pragma once

#include "moe/layout.hpp"

#include <headrace/moe.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace::moe {

inline constexpr std::uint32_t no_rank = ~std::uint32_t{0};
inline constexpr std::uint32_t no_row = ~std::uint32_t{0};

/// A bit for each rank.
using Mask = std::uint64_t;
[[nodiscard]] constexpr Mask bit_of(std::uint32_t rank) { return Mask{1} << rank; }
[[nodiscard]] constexpr Mask mask_of_all(std::uint32_t ranks) {
  return ranks == moe_most_ranks ? ~Mask{0} : bit_of(ranks) - 1;
}

/// Where an entry (token, k) goes.
struct RoutedEntry {
  std::uint32_t rank = no_rank;  ///< no_rank: nowhere
  std::uint32_t expert = 0;      ///< among those of that rank
  std::uint32_t order = 0;       ///< entries of the same source for this expert before it
  float weight = 1;
};

/// A rank to which a token goes, and its slot there.
struct Visit {
  std::uint32_t rank;
  std::uint32_t slot;  ///< among those of the token's source
};

/// A record that came: which rows it became, in order of k.
struct PlacedEntry {
  std::uint32_t row;  ///< no_row: beyond the budget
  float weight;
};

/// What a route needs to know of the ranks.
struct Spread {
  std::uint32_t ranks = 1, group_size = 1, top_k = 1;
  std::vector<std::uint32_t> first_expert;  ///< of each rank, and the number of experts
};
[[nodiscard]] Spread spread_of(const MoEConfig& config);

/// Memory for the largest dispatch is taken when it is made.
class Routing {
 public:
  Routing(const MoEConfig& config, const WindowLayout& layout);

  // Operations that use it now, by their numbers; 0: none.
  std::uint64_t dispatch_sent = 0, combine_sent = 0;
  std::uint64_t group = 0;      ///< in which it was used last: what it has learnt holds there alone
  std::uint64_t memory_of = 0;  ///< the combine for which combine_memory was called; 0: none
  bool filled = false;          ///< a dispatch has been received with it
  std::uint64_t given = 0;      ///< rows that were given to its last dispatch

  // --- as a source: of all tokens of the group

  /// Makes the route of these tokens, whose entries have been filled with rank, expert and weight.
  /// Entries for ranks that are not active go nowhere.
  void route(const Spread& spread, std::uint32_t rank, std::uint64_t tokens, Mask active);
  /// Gives the entries other weights: [tokens, top_k].
  void weigh(const float* weights, std::uint64_t tokens) {
    for (std::uint64_t i = 0; i < tokens * top_k_; ++i) entries_[i].weight = weights[i];
  }
  /// Counts of this rank's part of the tokens, for each expert of all ranks, and records for each rank.
  [[nodiscard]] std::span<const std::uint32_t> counts() const { return counts_; }
  [[nodiscard]] std::uint32_t records_for(std::uint32_t rank) const { return records_for_[rank]; }

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  [[nodiscard]] std::span<RoutedEntry> entries(std::uint64_t token) {
    return std::span(entries_).subspan(token * top_k_, top_k_);
  }
  /// Ascending by rank.
  [[nodiscard]] std::span<const Visit> visits(std::uint64_t token) const {
    return std::span(visits_).subspan(token * top_k_, visit_counts_[token]);
  }

  // --- as a target

  void begin_records(std::uint32_t source, std::uint64_t count);
  /// Those of a source that its card announced.
  [[nodiscard]] std::uint64_t records(std::uint32_t source) const { return records_[source]; }
  /// Those that have not come, from this one on, never come.
  void miss_records(std::uint32_t source, std::uint64_t from) { came_[source] = from; }
  /// Records of a source that have come, when its dispatch has been received.
  [[nodiscard]] std::uint64_t came(std::uint32_t source) const { return came_[source]; }
  /// by_rank: records of a source that have a row: those before the budget's end.
  [[nodiscard]] std::uint64_t written(std::uint32_t source) const {
    std::uint64_t count = 0;
    while (count < records(source) && !placed(source, count).empty() &&
           placed(source, count).front().row != no_row)
      ++count;
    return count;
  }
  /// A record that has not come has none.
  [[nodiscard]] std::span<const PlacedEntry> placed(std::uint32_t source, std::uint64_t slot) const {
    const std::uint64_t record = source * slots_ + slot;
    return std::span(placed_).subspan(record * top_k_, placed_counts_[record]);
  }
  void place(std::uint32_t source, std::uint64_t slot, PlacedEntry entry) {
    const std::uint64_t record = source * slots_ + slot;
    placed_[record * top_k_ + placed_counts_[record]++] = entry;
  }

 private:
  void visit(std::uint64_t token, std::uint32_t rank, std::uint32_t slot);

  const std::uint64_t top_k_, slots_;
  std::uint64_t tokens_ = 0;
  std::vector<RoutedEntry> entries_;
  std::vector<Visit> visits_;
  std::vector<std::uint8_t> visit_counts_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> records_for_;
  std::vector<std::uint32_t> next_slot_;  // for each rank, while a route is made
  std::vector<std::uint64_t> records_, came_;
  std::vector<PlacedEntry> placed_;
  std::vector<std::uint8_t> placed_counts_;
};

}  // namespace headrace::moe
