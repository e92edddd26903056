// SPDX-License-Identifier: Apache-2.0
// The weights of experts that several ranks hold: brought to the places that a step needs them in.
#pragma once

#include <headrace/moe_plan.hpp>
#include <headrace/tensor.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headrace {

class Agent;

/// Gives hot experts replicas on other ranks, step by step. Experts of the configuration are places. Some of
/// them keep the weights of an expert; the others are free, and get those of the experts that a step needs
/// there.
///
/// A call of `balance` gathers the counts of this step from all ranks, makes the same plan on each of them
/// (moe_plan), and reads the weights of new replicas from the ranks that keep them. Replicas that a place
/// holds already are not moved. Then `replicas` is the table for a dispatch.
///
/// **Failure.** If a rank is late or gone, `balance` ends with an error on every rank that takes part, or has
/// succeeded there; either way `replicas` is right: after an error it names only places that keep their
/// experts. Go on with the dispatch, which leaves the rank out for all, and with the next call, which goes on
/// with those that take part then. If the rank that kept an expert is out, a replica of it that another one
/// holds is kept from then on. After MoE::regroup all ranks open a new one.
///
/// Ranks send one another notifications, whose first bytes are "headrace.moe.weights ": a program that takes
/// notifications of this agent without a filter, or by Agent::on_notification, takes these away.
///
///   threads  one at a time
///   fork     in a forked child open and balance return invalid_argument
class MoEWeights {
 public:
  struct State;

  /// Meets the other ranks: all that take part call it, after they have joined, in the same order.
  ///   agent    that of the MoE. It and the MoE stay the caller's, open and in place until this object is
  ///            gone; the MoE is in host memory
  ///   experts  [config.experts]: that each place keeps, 0 and up; -1: it is free. Each expert has a place.
  ///            The same on all ranks
  ///   tensors  1 to 64: [local_experts, ...], without gaps, in registered memory of the agent, which stays
  ///            the caller's. Places that keep an expert have its weights now, and nobody changes them while
  ///            others may read. As many on all ranks, of the same types and shapes, the first length apart
  ///   name     the same on all ranks; another one for each object of a MoE, for example of each layer
  ///   errors   invalid_argument (what differs, and on which rank), not_found (a peer's memory is not known:
  ///            import metadata that it made after it had registered it, or give the agents a store),
  ///            not_supported (a GPU), timed_out and peer_lost (which rank), canceled (interrupted). After an
  ///            error all ranks call it again
  static HEADRACE_API Result<MoEWeights> open(Agent& agent, MoE& moe, std::span<const std::int32_t> experts,
                                              std::span<const TensorView> tensors, const std::string& name,
                                              std::chrono::nanoseconds timeout);
  HEADRACE_API ~MoEWeights();
  HEADRACE_API MoEWeights(MoEWeights&&) noexcept;
  HEADRACE_API MoEWeights& operator=(MoEWeights&&) noexcept;

  /// All ranks that take part call it at the same place in the order of operations, when the experts have
  /// run that use the free places. It writes the free places of this rank.
  ///   counts  [number of experts]: how many entries of the tokens of this rank's group name each expert
  ///   errors  timed_out, peer_lost (which rank), canceled (interrupted; another rank has left this one out),
  ///           invalid_argument (counts; a rank that has come since), corrupt, those of Agent::read,
  ///           and the error of another rank, with its number
  HEADRACE_API Result<void> balance(std::span<const std::int64_t> counts, std::chrono::nanoseconds timeout);

  /// The table for this rank's next dispatch. Before the first call of `balance`, and after one that has
  /// failed, it has the places that keep their experts. Points into this object, until the next call.
  [[nodiscard]] HEADRACE_API MoEReplicas replicas() const;
  /// What each place holds by that table, and the entries that each rank gets.
  [[nodiscard]] HEADRACE_API const MoEPlan& plan() const;
  /// Bytes of weights that the last call of `balance` has read.
  [[nodiscard]] HEADRACE_API std::uint64_t moved_bytes() const;

 private:
  explicit MoEWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
