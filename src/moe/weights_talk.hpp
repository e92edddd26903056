// SPDX-License-Identifier: Apache-2.0
// Messages between the ranks whose weights move: notifications of their agents. While two agents connect they
// may have two links, so messages come in any order. Each object has a random number, its life, to which
// messages are addressed: so none of an earlier object or process counts.
#pragma once

#include "base/clock.hpp"
#include "moe/weights_message.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::moe {

class WeightsTalk {
 public:
  ///   agents  of all ranks, in their order
  ///   name    tells objects of one MoE apart
  WeightsTalk(Agent& agent, const MoEConfig& config, std::vector<std::string> agents, std::string_view name);

  /// Gives each rank of `members` this rank's card, and takes theirs, which `card_of` returns then.
  ///   card    without its life
  ///   errors  timed_out and peer_lost (which rank), canceled (interrupted), corrupt, and those of
  ///           Agent::notify
  Result<void> meet(WeightsCard card, Mask members, Deadline deadline);
  [[nodiscard]] const WeightsCard& card_of(std::uint32_t rank) const { return *peers_[rank].card; }

  /// errors: timed_out, and those of Agent::notify
  Result<void> send(std::uint32_t rank, std::string_view message, Deadline deadline);
  /// What a rank has sent for this call.
  ///   errors  as meet; the error of a rank with which the call has failed
  Result<WeightsCounts> wait_counts(std::uint32_t rank, std::uint64_t call, Deadline deadline);
  Result<WeightsEnd> wait_end(std::uint32_t rank, std::uint64_t call, Deadline deadline);

  /// errors: canceled (the caller has interrupted), timed_out, peer_lost
  [[nodiscard]] Result<void> check_waiting(std::uint32_t rank, std::string_view awaited,
                                           Deadline deadline) const;
  /// "rank 2 (agent "x")".
  [[nodiscard]] std::string rank_text(std::uint32_t rank) const;

 private:
  struct Peer {
    std::string agent;
    std::optional<WeightsCard> card;
    bool has_greeted = false, has_answered = false;
    std::vector<WeightsCounts> counts;  // that have come and are not taken
    std::vector<WeightsEnd> ends;
  };

  /// Waits a moment for a message and puts it where it belongs.
  ///   members  whose greetings are answered
  Result<void> take_one(Mask members, Deadline deadline);
  Result<void> keep(Peer& from, std::string_view message) const;
  Result<void> greeted(std::uint32_t rank, std::string_view bytes, Deadline deadline);
  Result<void> notify(std::uint32_t rank, const std::string& payload, Deadline deadline);
  [[nodiscard]] std::string inbox_prefix(std::uint64_t life) const;
  template <class Message>
  Result<Message> wait(std::uint32_t rank, std::vector<Message> Peer::*messages, std::uint64_t call,
                       std::string_view awaited, Deadline deadline);
  /// Takes the message of a call from those that have come, and drops those of earlier calls.
  template <class Message>
  [[nodiscard]] static std::optional<Message> take(std::vector<Message>& messages, std::uint64_t call);
  [[nodiscard]] Result<void> check_not_failed(std::uint32_t rank, std::uint64_t call) const;
  [[nodiscard]] bool is_lost(std::uint32_t rank) const;

  Agent& agent_;
  const MoEConfig& config_;
  const std::string prefix_, hello_prefix_;
  WeightsCard own_;
  std::string own_prefix_;
  std::vector<Peer> peers_;  // by rank, this one too
};

}  // namespace headrace::moe
