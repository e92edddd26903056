// SPDX-License-Identifier: Apache-2.0
// One rank's ways to the ranks of other nodes: their windows, and what they signal. A fabric carries both.
// Signals are taken on its callback thread, which stores them as the flags and words that a rank of this node
// would have stored: the rank itself looks at the same words of its window as ever.
#pragma once

#include "base/clock.hpp"
#include "moe/far_window.hpp"
#include "moe/nodes.hpp"
#include "moe/now_and_then.hpp"
#include "moe/words.hpp"

#include <headrace/fabric.hpp>
#include <headrace/moe.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::moe {

class Network {
 public:
  ///   window  this rank's; it stays in place until this object is gone
  static Result<std::unique_ptr<Network>> open(const MoEConfig& config, std::span<std::byte> window,
                                               const FabricOptions& options);
  /// Waits until what this rank has sent is there, but not long.
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// To the window, for ranks of other nodes: the fabric's address as text, a line's end, and the window's
  /// descriptor.
  [[nodiscard]] std::string way() const {
    return fabric_.address().to_text() + '\n' + memory_.descriptor().bytes();
  }
  /// A rank of another node, by its way. Replaces an earlier one, unless that is the same and has no failed
  /// posts. What it replaces stays in place until the next `start`.
  [[nodiscard]] Result<void> add(std::uint32_t peer, std::string_view way);
  /// Whether bytes travel to and from it. Asked about ten times a second, `interrupted` ends the wait.
  [[nodiscard]] Result<void> reach(std::uint32_t peer, Deadline deadline,
                                   const std::function<bool()>& interrupted = {});
  /// Ranks that go on together, from one place in the order of operations.
  struct Group {
    Mask members = 0;
    std::uint32_t home = 0;                      ///< the rank whose window has the votes
    std::optional<Window> votes;                 ///< that window, if it is on this node
    std::uint64_t dispatches = 0, combines = 0;  ///< that count as done
  };
  /// All are there: signals of this group are taken from now on.
  void start(const Group& group);
  /// Ranks regroup, these among them: what they send as the next group is held until `start`. Waits until
  /// what this rank has sent them as the last group is there.
  ///   errors  timed_out (to which rank)
  [[nodiscard]] Result<void> begin_meeting(Mask members, Deadline deadline);

  /// Null: of a rank of this node.
  [[nodiscard]] FarWindow* far(std::uint32_t peer) const { return far_[peer].get(); }
  /// Signals name epochs by their low bits: those of about now.
  void is_at(Operation operation, std::uint64_t epoch) {
    near_[operation == Operation::dispatch ? 0 : 1] = epoch;
  }
  /// A rank of another node is gone, or the way to it.
  [[nodiscard]] bool lost(std::uint32_t peer) const { return far(peer) != nullptr && far(peer)->broken(); }
  /// While it waits for these ranks: shows whether they live, and asks for votes, a few times a second.
  void probe(Mask ranks);

  // --- votes

  /// Whether the votes are on another node.
  [[nodiscard]] bool votes_are_far() const { return !nodes_.are_near(rank_, group_.home); }
  /// The ranks that are out, as far as this node knows. Only if the votes are far.
  [[nodiscard]] Mask voted_out() const { return voted_out_; }
  enum class Counted : std::uint8_t { yes, voter_is_out, unanswered };
  /// Asks the node that has the votes. Waits for one of its ranks, up to the limit of waits.
  [[nodiscard]] Counted vote_out(Mask ranks);
  /// Tells ranks of other nodes.
  void tell_votes(Mask out);
  /// Tells a rank of another node that this one leaves it out.
  void tell_left_out(std::uint32_t peer);

 private:
  Network(const MoEConfig& config, Fabric fabric, Window own);
  void listen();
  void take(const Signal& signal);
  void take_now(const Signal& signal);
  void take_of_group(const Signal& signal);
  void take_meeting(std::span<const std::byte> bytes);
  /// Whether it holds in the group of now, or always.
  [[nodiscard]] bool is_of_now(const Signal& signal) const;
  void signal_votes(FarWindow& to, Mask out) const;
  /// The ranks that count votes.
  [[nodiscard]] Mask deciders() const { return nodes_.mask_of(nodes_.node_of(group_.home)) & group_.members; }
  void take_chunks(const Signal& signal);
  void take_flags(const Signal& signal, const Chunks& chunks);
  /// Whether this rank forwards rows of that one.
  [[nodiscard]] bool may_relay(std::uint32_t source) const {
    return relay_.nodes != 0 && nodes_.index_of(source) == nodes_.index_of(rank_);
  }
  void take_relay_card(const Signal& signal, const Chunks& chunks);
  void take_word(std::uint32_t peer, std::size_t word, std::uint64_t value);
  [[nodiscard]] Counted vote(std::uint32_t against);
  void take_vote(std::uint32_t voter, Vote vote);
  void take_votes(Mask out);
  void take_answer(Vote vote);

  const Nodes nodes_;
  const WindowLayout layout_;
  const RelayLayout relay_;
  const std::uint32_t rank_;
  const std::chrono::nanoseconds limit_;
  Fabric fabric_;
  const Window own_;
  FabricMemory memory_;
  std::vector<std::unique_ptr<FarWindow>> far_, replaced_;  // of each rank
  bool listens_ = false;

  // The callback thread takes signals under this lock. `far_` and `group_` change under it alone, by calls of
  // the rank, which reads them without.
  std::mutex taking_;
  Group group_;
  bool meets_ = false;
  std::vector<Signal> held_;  // while ranks regroup: of the next group
  std::array<std::atomic<std::uint64_t>, 2> near_{};
  NowAndThen next_probe_{200'000'000};

  std::atomic<Mask> voted_out_ = 0;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::uint32_t votes_ = 0;     // that this rank has given
  std::optional<Vote> answer_;  // to the last one
};

}  // namespace headrace::moe
