// SPDX-License-Identifier: Apache-2.0
// The table of replicas that a caller gives: checked, and asked for the place of each entry in turn.
#pragma once

#include "moe/routing.hpp"

#include <headrace/moe.hpp>

#include <cstdint>
#include <vector>

namespace headrace::moe {

/// What the tables are, not what they hold.
///   errors  invalid_argument
[[nodiscard]] Result<void> check_tables(const MoEReplicas& replicas, int places);
/// errors: invalid_argument
[[nodiscard]] Result<void> check_replicas(const MoEReplicas& replicas, int places);

/// Chooses a place for one entry after another. Its memory is taken once.
class ReplicaChooser {
 public:
  explicit ReplicaChooser(const MoEConfig& config)
      : orders_(static_cast<std::size_t>(config.experts)), loads_(static_cast<std::size_t>(config.ranks)) {}

  /// For the tokens of one dispatch of a group.
  ///   replicas  checked
  void begin(const MoEReplicas& replicas, const Spread& spread, std::uint32_t rank, Mask active);
  /// A place of an expert that tokens name. One of a rank that takes part, if there is one.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t expert);

 private:
  [[nodiscard]] std::uint32_t choose(std::uint32_t expert, const std::int32_t* places, std::uint32_t count,
                                     std::uint64_t order) const;
  [[nodiscard]] std::uint32_t least_loaded(const std::int32_t* places, std::uint32_t count) const;
  [[nodiscard]] std::uint32_t rank_of(std::int32_t place) const;

  const MoEReplicas* replicas_ = nullptr;
  const Spread* spread_ = nullptr;
  std::uint64_t group_ = 0;
  Mask active_ = 0;
  std::vector<std::uint64_t> orders_;  ///< entries of each expert so far
  std::vector<std::int64_t> loads_;    ///< of each rank
};

}  // namespace headrace::moe
