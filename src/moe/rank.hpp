// SPDX-License-Identifier: Apache-2.0
// One rank over the windows of all: dispatch and combine. It knows no agents, so tests run ranks as threads
// on memory that they share. docs/decisions/0017-moe.md has the protocol.
#pragma once

#include "base/clock.hpp"
#include "moe/epochs.hpp"
#include "moe/network.hpp"
#include "moe/now_and_then.hpp"
#include "moe/peer_window.hpp"
#include "moe/replicas.hpp"
#include "moe/routing.hpp"
#include "moe/sums.hpp"
#include "moe/under_way.hpp"
#include "moe/words.hpp"

#include <headrace/moe.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::moe {

/// One thread at a time. Arguments have been checked where a comment says so.
class Rank {
 public:
  ///   windows  of the ranks of this node, this one's too, zeros at first; they stay mapped
  ///   lost     whether a rank of this node is known to be dead
  ///   network  has the others; null: there are none. It stays in place
  Rank(const MoEConfig& config, const std::vector<std::byte*>& windows, std::function<bool(int)> lost,
       Network* network = nullptr);

  /// Routing for this rank's dispatches.
  [[nodiscard]] Routing new_routing() const { return {config_, layout_}; }

  /// Both halves. An error of the first one that was met on the way does not keep the second from running.
  Result<void> dispatch(const MoETokens& tokens, const MoERows& out, Routing& routing);
  Result<void> combine(const MoEResults& results, const MoESums& sums, Routing& routing);
  Result<void> dispatch_send(const MoETokens& given, Routing& routing);
  Result<void> dispatch_receive(const MoERows& out, Routing& routing);
  Result<void> combine_send(const MoEResults& results, Routing& routing);
  Result<void> combine_receive(const MoESums& sums, Routing& routing);
  Result<void> combine_memory(Routing& routing, std::span<MoEWindowRows> of_ranks);

  /// Goes on with these ranks, from the same place in the order of operations (regroup.cpp).
  ///   windows  as in the constructor, those of ranks that leave too; null: of a rank that never was here.
  ///   The
  ///            network has those of other nodes
  Result<void> regroup(const std::vector<std::byte*>& windows, Mask members, Deadline deadline);

  /// Those that take part, the same on all ranks.
  [[nodiscard]] Mask active() const { return members_ & ~voted_out(); }
  /// `ranks` is a part of active() with this rank.
  ///   errors  canceled (this rank is out)
  Result<void> set_active(Mask ranks);
  [[nodiscard]] const std::optional<MoEFailure>& failure() const { return failure_; }

 private:
  enum class Step : std::uint8_t { waits, moved, done };
  /// What a wait is for: a word of this rank's window, which each rank has.
  struct Awaited {
    std::string_view what;
    std::uint64_t expected;
    std::function<std::uint64_t(std::uint32_t)> offset;
    std::function<bool(std::uint64_t)> is_there;
    /// The rank that forwards what comes from a peer; the peer itself: nobody does. Empty: of none.
    std::function<std::uint32_t(std::uint32_t)> via = {};
  };
  struct Running {
    Operation operation = Operation::dispatch;
    std::uint64_t epoch = 0;
    std::optional<Error> error;  ///< the first
  };
  // --- rank.cpp
  /// At the beginning of each operation. Canceled, once another rank was seen to have left this one out.
  [[nodiscard]] Result<void> not_left_out(Operation operation, std::uint64_t number);
  /// Lets go what an operation held that will not be received any more.
  void refresh(Routing& routing) const;
  void begin(Operation operation, std::uint64_t epoch) {
    running_ = {operation, epoch, {}};
    if (network_ != nullptr) network_->is_at(operation, epoch);
  }
  [[nodiscard]] Result<void> end();
  /// Calls take(rank) for these ranks in turn until each is done. Leaves out those for which nothing moves
  /// within the limit.
  template <class Take>
  void drive(Mask ranks, const Awaited& awaited, const Take& take);
  /// Leaves out what is lost among these ranks, and all of them if the wait is late. Returns the others.
  [[nodiscard]] Mask check_waiting(Mask ranks, const Awaited& awaited, Deadline limit);
  void leave_out(std::uint32_t peer, Code code, std::string_view what, std::uint64_t expected,
                 std::uint64_t seen, bool voted = false);
  /// Why a rank could not join, as it says; empty: it has joined.
  [[nodiscard]] std::string reason_of(std::uint32_t peer) const;
  /// The ranks that all leave out.
  [[nodiscard]] Mask voted_out() const {
    return windows_[home_].is_far() ? network_->voted_out()
                                    : windows_[home_].mapped().load(WindowLayout::voted_out_at);
  }
  /// Leaves ranks out for all, unless this rank is out itself.
  Network::Counted vote_out(Mask ranks);
  /// Tells those that have gone who has left them out, and goes on with the others.
  void go_on_with(Mask ranks);
  void tell_left_out(std::uint32_t peer) const;
  /// Nothing is done any more until a regroup.
  void give_up(MoEFailure failure);
  /// A rank that has left this one out.
  [[nodiscard]] std::optional<std::uint32_t> left_out_by() const;
  [[nodiscard]] bool interrupted();
  [[nodiscard]] MoEFailure failure_of(Code code, std::int64_t peer) const {
    MoEFailure failure;
    failure.code = code, failure.waiter = static_cast<int>(rank_), failure.peer = static_cast<int>(peer);
    failure.operation = name_of(running_.operation), failure.number = running_.epoch;
    return failure;
  }
  [[nodiscard]] static std::string_view name_of(Operation operation) {
    return operation == Operation::dispatch ? "dispatch" : "combine";
  }

  // --- regroup.cpp
  [[nodiscard]] Result<void> may_regroup() const;
  [[nodiscard]] Result<void> meet(Mask members, Deadline deadline);
  void ask(Mask members, std::uint64_t number);
  /// Answers those that ask with a number that it has not answered.
  [[nodiscard]] bool answer(Mask members, std::uint64_t bits = 0);
  [[nodiscard]] Result<void> check_meeting(Mask missing, Deadline deadline);
  void begin_group(Mask members);
  void begin_with(std::uint32_t peer) const;
  template <class Each>
  static void for_ranks(Mask ranks, const Each& each) {
    for (; ranks != 0; ranks &= ranks - 1) each(static_cast<std::uint32_t>(std::countr_zero(ranks)));
  }

  /// Waits until these ranks have taken what was sent two operations ago.
  ///   taken  where they say so in PeerWords
  void wait_for_room(Mask ranks, std::size_t taken);
  /// Of ranks of other nodes: what was posted two operations ago has left.
  void wait_for_posts(Mask ranks);
  [[nodiscard]] bool is_active(std::uint32_t rank) const { return (active_ & bit_of(rank)) != 0; }
  [[nodiscard]] const Window& own() const { return windows_[rank_].mapped(); }
  [[nodiscard]] bool is_lost(std::uint32_t peer) const {
    return windows_[peer].is_far() ? network_->lost(peer) : lost_(static_cast<int>(peer));
  }
  [[nodiscard]] std::uint32_t experts_of(std::uint32_t rank) const {
    return spread_.first_expert[rank + 1] - spread_.first_expert[rank];
  }

  // --- dispatch_send.cpp
  /// What travels of a token beside its entries.
  struct TokenRow {
    const std::byte* row = nullptr;
    const std::byte* scales = nullptr;
  };
  [[nodiscard]] static Result<std::int64_t> count_of(const MoETokens& tokens);
  /// The tokens that this rank sends, of those of its group.
  [[nodiscard]] TokenRange range_of(const MoETokens& tokens) const {
    return tokens_of_member(static_cast<std::uint64_t>(tokens.count), layout_.group_size,
                            rank_ % layout_.group_size);
  }
  [[nodiscard]] Result<void> check_tokens(const MoETokens& tokens, const Routing& routing) const;
  [[nodiscard]] Result<void> read_experts(const MoETokens& tokens, Routing& routing);
  template <class Number>
  [[nodiscard]] Result<void> read_numbers(const MoETokens& tokens, Routing& routing);
  void send_cards(const Routing& routing);
  void send_records(const MoETokens& tokens, Routing& routing);
  [[nodiscard]] TokenRow row_of(const MoETokens& tokens, std::uint64_t token);
  void write_record(std::byte* record, std::uint32_t target, const TokenRow& row, const MoETokens& tokens,
                    std::uint64_t token, Routing& routing) const;
  /// What a record has from its row on.
  void write_columns(std::byte* columns, const TokenRow& row, const MoETokens& tokens,
                     std::uint64_t token) const;

  // --- relay.cpp
  /// Whether rows for a rank go to another one first, which forwards them; or the rank is that one.
  [[nodiscard]] bool is_relayed(std::uint32_t target) const {
    return relays_[nodes_.node_of(target)].rank != no_rank;
  }
  /// Chooses the ranks that forward, and tells them how many records come.
  void begin_relays(const TokenRange& range, const Routing& routing);
  /// The record of a token for each node that forwards.
  void send_relay_records(const MoETokens& tokens, std::uint64_t token, const TokenRow& row,
                          Routing& routing);
  void write_relay_record(std::byte* record, std::span<const Visit> visits, const TokenRow& row,
                          const MoETokens& tokens, std::uint64_t token, Routing& routing) const;
  template <class Each>
  void for_relayed_nodes(std::span<const Visit> visits, const Each& each) const;
  /// Brings what other nodes send through this rank to the ranks of its node.
  void forward();
  [[nodiscard]] Step forward_chunk(std::uint32_t source);
  [[nodiscard]] bool forward_record(std::uint32_t source, std::uint64_t slot);
  void forward_to(std::uint32_t target, std::uint32_t source, const std::byte* record,
                  std::span<const RelayEntry> entries);
  void tell_forwarded(std::uint32_t source);
  [[nodiscard]] bool is_forwarded(std::uint32_t source) const { return (forwarded_ & bit_of(source)) != 0; }
  /// The rank of this node through which the rows of a source come; the source itself: none.
  [[nodiscard]] std::uint32_t last_stop(std::uint32_t source) const;

  // --- dispatch_receive.cpp
  void take_cards(Routing& routing);
  [[nodiscard]] bool take_card(std::uint32_t source, Routing& routing);
  /// Where the rows of each source and expert begin.
  void lay_out();
  void lay_out_sources(const Routing& routing);
  void take_records(const MoERows& out, Routing& routing);
  void miss_records(std::uint32_t source, Routing& routing);
  [[nodiscard]] bool take_record(const MoERows& out, std::uint32_t source, std::uint64_t slot,
                                 Routing& routing);
  void place_entries(const MoERows& out, std::uint32_t source, std::uint64_t slot, const std::byte* record,
                     std::span<const Entry> entries, Routing& routing);
  void place_record(const MoERows& out, std::uint32_t source, std::uint64_t slot, const std::byte* record,
                    std::span<const Entry> entries, Routing& routing);
  void write_row(const MoERows& out, std::uint64_t row, const std::byte* record) const;
  /// Null: zeros.
  void write_scales(const MoERows& out, std::uint64_t row, const std::byte* scales) const;
  void zero_padding(const MoERows& out) const;
  void write_counts(const MoERows& out) const;
  [[nodiscard]] std::uint64_t end_of_expert(std::uint32_t expert) const;
  void check_budget();
  [[nodiscard]] std::uint32_t& before(std::uint32_t source, std::uint32_t expert) {
    return before_[source * experts_of(rank_) + expert];
  }
  /// What the card of a source says of each expert.
  [[nodiscard]] std::span<std::uint32_t> card_counts(std::uint32_t source) {
    return std::span(card_counts_).subspan(source * experts_of(rank_), experts_of(rank_));
  }

  // --- combine.cpp
  [[nodiscard]] Result<void> check_results(const MoEResults& results, const Routing& routing) const;
  [[nodiscard]] Result<void> check_routing(const Routing& routing) const;
  void send_partials(const MoEResults& results, const Routing& routing, std::uint32_t source);
  void write_partial(const MoEResults& results, const Routing& routing, std::uint32_t source,
                     std::uint64_t slot);
  void complete_in_window(std::uint32_t source, std::uint64_t slot, bool is_written) const;
  void send_missing(std::uint32_t source, std::uint64_t from);
  void tell_missed(std::uint32_t target);
  template <class Each>
  void for_members(std::uint32_t rank, const Each& each) const;
  [[nodiscard]] Result<void> check_sums(const MoESums& sums, const Routing& routing) const;
  ///   member  of the group, which sends the token
  void receive_sum(const MoESums& sums, const Routing& routing, std::uint64_t token, std::uint32_t member);
  [[nodiscard]] const std::byte* wait_for_partial(std::uint32_t target, std::uint64_t group_slot);

  const MoEConfig config_;
  const WindowLayout layout_;
  const Spread spread_;
  const std::uint32_t rank_;
  const std::uint32_t spins_;
  const Nodes nodes_;
  const RelayLayout relay_;
  std::vector<PeerWindow> windows_;
  const std::function<bool(int)> lost_;
  Network* const network_;

  Mask active_;
  UnderWay dispatches_, combines_;
  Running running_;
  std::optional<MoEFailure> failure_;
  std::optional<std::string> given_up_;    ///< why no operation does anything
  Mask members_;                           ///< since ranks regrouped: those of then
  std::uint32_t home_ = 0;                 ///< the rank whose window has the votes
  std::uint64_t group_ = 0;                ///< counts regroupings
  NowAndThen next_question_{100'000'000};  ///< when the caller is asked whether it has been interrupted

  // Of the dispatch that is received.
  std::vector<std::uint32_t> card_counts_;  ///< [source, expert]
  std::vector<std::uint32_t> before_;       ///< [source, expert]: entries of earlier sources
  std::vector<std::uint64_t> first_rows_;   ///< of each expert (by_rank: source), and the end
  std::vector<std::uint32_t> totals_;       ///< of each expert
  std::vector<std::uint64_t> next_chunk_;   ///< of each source
  Mask forwarded_ = 0;                      ///< sources whose rows come through a rank of this node
  std::vector<std::byte> token_row_;        ///< cast
  std::vector<std::byte> token_scales_;     ///< gathered or made

  // Of what is forwarded.
  struct Relay {
    std::uint32_t rank = no_rank;         ///< no_rank: rows go straight to the ranks of the node
    std::uint64_t records = 0, next = 0;  ///< of a dispatch
  };
  std::vector<Relay> relays_;                ///< as a source: of each node
  std::vector<std::uint64_t> forwarded_to_;  ///< [source, rank of this node]: slots that have been written

  ReplicaChooser chooser_;
  std::vector<std::uint64_t> answered_;  ///< while ranks regroup: the number of each
  std::vector<Meeting> told_;            ///< to each
};

}  // namespace headrace::moe
