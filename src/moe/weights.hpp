// SPDX-License-Identifier: Apache-2.0
// One call of MoEWeights::balance, step by step: gather, plan, read, end.
#pragma once

#include "base/clock.hpp"
#include "base/fork_guard.hpp"
#include "moe/weights_talk.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe_weights.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct MoEWeights::State {
  State(Agent& of, MoE& with, std::span<const std::int32_t> given, std::string named);

  /// The tensors of this rank, in regions of its agent.
  Result<void> locate(std::span<const TensorView> tensors);
  /// Greets the other ranks and compares what they were given.
  Result<void> meet(Deadline deadline);
  Result<void> balance(std::span<const std::int64_t> counts, Deadline deadline);

  [[nodiscard]] Result<void> not_forked() const;
  [[nodiscard]] Error refused(std::string_view call, Error error) const;

  /// A tensor: the same bytes for each place.
  struct Weights {
    moe::WeightsLocation location;
    std::uint64_t place_bytes = 0;
  };
  /// What the ranks that take part have told, this one too.
  struct Gathered {
    std::vector<std::int64_t> counts;      // [groups, experts]
    std::vector<std::int32_t> kept, held;  // [places]: experts that places keep, or hold now; -1: none
  };

  [[nodiscard]] Result<moe::WeightsLocation> locate_tensor(const TensorView& tensor) const;
  [[nodiscard]] Result<moe::Mask> ranks_now() const;
  [[nodiscard]] moe::WeightsCounts own_counts(std::span<const std::int64_t> counts) const;
  Result<Gathered> gather(std::span<const std::int64_t> counts, Deadline deadline);
  [[nodiscard]] Result<void> add_counts(std::uint32_t rank, const moe::WeightsCounts& told,
                                        std::vector<moe::WeightsCounts>& all) const;
  [[nodiscard]] Result<Gathered> join_counts(const std::vector<moe::WeightsCounts>& all) const;
  /// An expert whose places are all on ranks that do not take part is kept by a place that holds a replica.
  void adopt(Gathered& gathered) const;
  [[nodiscard]] std::uint32_t rank_of(std::size_t place) const;
  [[nodiscard]] std::vector<std::size_t> homes(const Gathered& gathered) const;
  /// Pages here, and those of a rank that go there.
  struct PagesOfRank {
    std::vector<Page> local, remote;
  };
  ///   local  among the places of this rank
  ///   from   among all places
  void add_pages(PagesOfRank& pages, std::size_t local, std::size_t from) const;
  /// Reads the weights of new replicas of this rank.
  Result<void> read(const MoEPlan& made, const Gathered& gathered, Deadline deadline);
  Result<void> move(const std::vector<RequestPart>& parts, Deadline deadline);
  /// Tells the others that this rank has its weights, and waits until they have theirs.
  Result<void> end(std::uint64_t plan_hash, Deadline deadline);
  void tell_failure(const Error& error);
  Result<void> run(std::span<const std::int64_t> counts, Deadline deadline);
  [[nodiscard]] Result<void> know_memory(std::uint32_t rank, Deadline deadline) const;
  [[nodiscard]] Result<MoEPlan> plan_of_kept(std::span<const std::int32_t> kept, moe::Mask active) const;

  Agent& agent;
  MoE& moe;
  const MoEConfig& config;
  const std::string name;
  const ForkGuard fork_guard;
  const moe::Spread spread;
  const std::vector<std::int32_t> experts;  // that places keep, as it was given
  const std::uint32_t own_rank;
  const std::size_t first_place, places;  // of this rank
  moe::WeightsTalk talk;
  std::string tensors_text;

  std::size_t expert_count = 0;
  std::vector<Weights> weights;
  moe::Mask members = 0;  // that have met
  moe::Mask active = 0;   // that take part in this call
  std::uint64_t calls = 0;
  std::vector<std::int32_t> kept, held;  // [places]: experts of this rank's places; -1: none
  std::vector<std::int32_t> safe;        // [config.experts]: that places keep, as of the last good call
  MoEPlan plan;
  bool is_balanced = false;
  std::uint64_t moved_bytes = 0;
};

}  // namespace headrace
