// SPDX-License-Identifier: Apache-2.0
// Revoking regions: ours, which every peer is asked to stop using, and those of peers, which we stop using.
//
// A question goes over every link, also over one that is made while answers are outstanding: its peer may
// know the regions from a store. A peer's question is answered when no post of ours uses its regions any
// more.
#pragma once

#include "base/log.hpp"
#include "engine/call_gate.hpp"
#include "engine/counters.hpp"
#include "engine/in_flight.hpp"
#include "engine/links.hpp"
#include "engine/local_regions.hpp"
#include "engine/mappings.hpp"
#include "wire/agent_message.hpp"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::engine {

class Revocation final : public LinkWatcher, public RegionUsers {
 public:
  /// Questions that wait for our answer, and the ranges in them, of one link: a peer that asks more and takes
  /// no answer loses the link. A revocation of as many ranges as metadata can name asks 129 questions.
  static constexpr std::size_t most_pending = 4096;
  static constexpr std::size_t most_pending_ranges = (std::size_t{1} << 20) + wire::revoke_ranges;

  /// `own`: the posts between our own regions, which are in flight on no link.
  Revocation(const CallGate& calls, Links& links, Mappings& mappings, const InFlight& own, Progress& progress,
             EngineCounters& counters, const Log& log)
      : calls_(calls),
        links_(links),
        mappings_(mappings),
        own_(own),
        progress_(progress),
        counters_(counters),
        log_(log) {}

  // --- regions of ours
  [[nodiscard]] bool in_use(std::span<const IdRange> ranges) const override;
  Result<void> ask_peers(std::span<const IdRange> ranges, std::uint64_t version, Deadline deadline,
                         const std::function<void()>& give_back) override;
  /// The peer has released the regions of this round.
  void answered(const Link& link, std::uint64_t sequence);

  // --- regions of peers
  /// A peer revokes regions: no new post uses them from here on; the answer waits for those in flight.
  void asked(const std::shared_ptr<Link>& link, wire::Revoke question);
  /// A post of ours has ended, which an answer may have waited for. From any thread, also inside a backend's
  /// call.
  void post_ended() {
    if (pending_count_.load() > 0) progress_.defer([this] { answer(); });
  }

  void link_added(const std::shared_ptr<Link>& link) override;
  void link_gone(const std::shared_ptr<Link>& link) override;

 private:
  struct Question {
    std::shared_ptr<Link> link;
    bool sent = false;
  };
  /// A question of ours, until each peer has answered.
  struct Round {
    std::string message;
    std::map<std::uint64_t, Question> waiting;  // by the link's token
  };
  /// A peer's question, until it is answered.
  struct Pending {
    std::shared_ptr<Link> link;
    std::shared_ptr<PeerLife> life;
    wire::Revoke question;
  };
  /// What of a link is in `pending_`.
  struct Load {
    std::size_t questions = 0, ranges = 0;
  };
  struct Unsent {
    std::shared_ptr<Link> link;
    std::uint64_t sequence = 0;
    std::string message;
  };

  std::vector<std::uint64_t> begin_rounds(std::span<const IdRange> ranges, std::uint64_t version);
  bool add(const std::shared_ptr<Link>& link);
  void end_rounds(const std::vector<std::uint64_t>& sequences);
  void ask();
  std::vector<Unsent> take_unsent();
  [[nodiscard]] bool all_answered(const std::vector<std::uint64_t>& sequences) const;
  Result<void> wait_for_answers(const std::vector<std::uint64_t>& sequences, Deadline deadline,
                                std::string_view if_silent) const;
  [[nodiscard]] std::set<std::string> silent(const std::vector<std::uint64_t>& sequences) const;
  bool keep(const std::shared_ptr<const Pending>& pending);
  void answer();
  void answer_later();
  [[nodiscard]] Status answer_one(const Pending& pending) const;
  void drop(const std::set<const Pending*>& answered);

  const CallGate& calls_;
  Links& links_;
  Mappings& mappings_;
  const InFlight& own_;
  Progress& progress_;
  EngineCounters& counters_;
  const Log& log_;

  mutable std::mutex mutex_;  ///< guards all below
  std::map<std::uint64_t, Round> rounds_;
  std::uint64_t next_round_ = 1;
  std::vector<std::shared_ptr<const Pending>> pending_;
  std::map<const Link*, Load> load_;
  std::atomic<std::size_t> pending_count_{0};
  bool answering_ = false;       ///< a thread is in `answer`
  bool look_again_ = false;      ///< that thread has to look once more
  bool waits_for_room_ = false;  ///< a timer will call `answer`: a link was full
};

}  // namespace headrace::engine
