// SPDX-License-Identifier: Apache-2.0
// Flags, taken words and masks of two and three ranks, in every order of their steps: a rank sends its parts
// of three operations, two of which are under way at once, and takes those of the others.
#include "moe/epochs.hpp"
#include "moe/votes.hpp"
#include "unit/lifecycle/explore.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::lifecycle::moe_order {
namespace {

constexpr std::size_t most_ranks = 3;

struct Part {
  std::uint64_t bytes = 0, flag = 0;  ///< the epoch that was written last
};

struct OrderWorld : Model {
  bool waits_for_no_room = false;   ///< planted: a half is written again at once
  bool flag_before_bytes = false;   ///< planted
  bool taken_before_read = false;   ///< planted
  bool waits_for_the_dead = false;  ///< planted: only what comes ends a wait

  std::size_t ranks = 2;
  Part parts[most_ranks][most_ranks][moe::halves];   ///< of a sender, in the window of a receiver
  std::uint64_t taken[most_ranks][most_ranks] = {};  ///< of a sender, by a receiver
  std::array<bool, most_ranks> dead{};
  bool left_out[most_ranks][most_ranks] = {};  ///< whom a rank leaves out

  Part& part(std::size_t from, std::size_t to, std::uint64_t epoch) {
    return parts[from][to][epoch % moe::halves];
  }
  [[nodiscard]] const Part& part(std::size_t from, std::size_t to, std::uint64_t epoch) const {
    return parts[from][to][epoch % moe::halves];
  }
  [[nodiscard]] bool gone(std::size_t of, std::size_t peer) const {
    return left_out[of][peer] || (dead[peer] && !waits_for_the_dead);
  }
  [[nodiscard]] bool has_room(std::size_t from, std::size_t to, std::uint64_t epoch) const {
    return waits_for_no_room || moe::may_write(taken[from][to], epoch);
  }
  /// Calls each(peer) for the others that a rank does not leave out.
  template <class Each>
  void for_peers(std::size_t of, const Each& each) const {
    for (std::size_t peer = 0; peer < ranks; ++peer)
      if (peer != of && !left_out[of][peer]) each(peer);
  }
  [[nodiscard]] std::string print() const {
    std::string text;
    const auto add = [&](std::uint64_t number) { text += std::to_string(number) + ","; };
    for (std::size_t from = 0; from < ranks; ++from) {
      add(dead[from] ? 1 : 0);
      for (std::size_t to = 0; to < ranks; ++to) {
        for (const Part& one : parts[from][to]) add(one.bytes), add(one.flag);
        add(taken[from][to]), add(left_out[from][to] ? 1 : 0);
      }
    }
    return text;
  }
  void at_end() {}
};
using W = OrderWorld;

/// A step of a rank, which ends it if it has died.
Step<W> step(std::size_t me, const std::string& name, std::uint64_t epoch, std::function<void(W&)> run,
             std::function<bool(const W&)> may_run = nullptr) {
  return {name + " " + std::to_string(epoch),
          [me, run = std::move(run)](W& w) {
            if (w.dead[me]) return end_of_thread;
            run(w);
            return next_step;
          },
          [me, may_run = std::move(may_run)](const W& w) { return w.dead[me] || !may_run || may_run(w); }};
}

void add_send(Thread<W>& thread, std::size_t me, std::uint64_t epoch) {
  const auto bytes = [=](W& w) {
    w.for_peers(me, [&](std::size_t peer) { w.part(me, peer, epoch).bytes = epoch; });
  };
  const auto flags = [=](W& w) {
    w.for_peers(me, [&](std::size_t peer) { w.part(me, peer, epoch).flag = epoch; });
  };
  thread.steps.push_back(step(
      me, "waits for room for", epoch,
      [=](W& w) {
        w.for_peers(me, [&](std::size_t peer) {
          if (!w.has_room(me, peer, epoch)) w.left_out[me][peer] = true;
        });
      },
      [=](const W& w) {
        bool all = true;
        w.for_peers(
            me, [&](std::size_t peer) { all = all && (w.has_room(me, peer, epoch) || w.gone(me, peer)); });
        return all;
      }));
  thread.steps.push_back(
      step(me, "writes bytes of", epoch, [=](W& w) { w.flag_before_bytes ? flags(w) : bytes(w); }));
  thread.steps.push_back(
      step(me, "sets flags of", epoch, [=](W& w) { w.flag_before_bytes ? bytes(w) : flags(w); }));
}

void add_receive(Thread<W>& thread, std::size_t me, std::uint64_t epoch) {
  const auto read = [=](W& w) {
    w.for_peers(me, [&](std::size_t peer) {
      w.require(w.part(peer, me, epoch).bytes == epoch, "a rank reads what is not of this operation");
    });
  };
  const auto tell = [=](W& w) { w.for_peers(me, [&](std::size_t peer) { w.taken[peer][me] = epoch; }); };
  thread.steps.push_back(step(
      me, "waits for", epoch,
      [=](W& w) {
        w.for_peers(me, [&](std::size_t peer) {
          if (!moe::has_come(w.part(peer, me, epoch).flag, epoch)) w.left_out[me][peer] = true;
        });
      },
      [=](const W& w) {
        bool all = true;
        w.for_peers(me, [&](std::size_t peer) {
          all = all && (moe::has_come(w.part(peer, me, epoch).flag, epoch) || w.gone(me, peer));
        });
        return all;
      }));
  thread.steps.push_back(step(me, "reads", epoch, [=](W& w) { w.taken_before_read ? tell(w) : read(w); }));
  thread.steps.push_back(
      step(me, "tells taken", epoch, [=](W& w) { w.taken_before_read ? read(w) : tell(w); }));
}

Thread<W> rank_thread(std::size_t me) {
  Thread<W> thread{"rank " + std::to_string(me), {}};
  add_send(thread, me, 1);
  add_send(thread, me, 2);
  add_receive(thread, me, 1);
  add_send(thread, me, 3);
  add_receive(thread, me, 2);
  add_receive(thread, me, 3);
  return thread;
}

Explorer<W> explorer(
    std::size_t ranks, bool one_dies, const std::function<void(W&)>& change = [](W&) {}) {
  std::vector<Thread<W>> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) threads.push_back(rank_thread(rank));
  if (one_dies)
    threads.push_back({"death", {{"rank 1 dies", [](W& w) { return w.dead[1] = true, next_step; }}}});
  return {[=] {
            auto world = std::make_unique<W>();
            world->ranks = ranks;
            change(*world);
            return world;
          },
          std::move(threads)};
}

TEST(MoEOrder, of_two_ranks_gives_no_rank_a_part_of_another_operation) {
  expect_kept("two ranks", explorer(2, false));
  expect_kept("two ranks, one dies", explorer(2, true));
}

TEST(MoEOrder, of_three_ranks_gives_no_rank_a_part_of_another_operation) {
  expect_kept("three ranks", explorer(3, false));
  expect_kept("three ranks, one dies", explorer(3, true));
}

TEST(MoEOrder, finds_planted_defects) {
  const std::string promise = "a rank reads what is not of this operation";
  expect_broken("a half is written before it was taken",
                explorer(2, false, [](W& w) { w.waits_for_no_room = true; }), promise);
  expect_broken("the flag comes before the bytes",
                explorer(2, false, [](W& w) { w.flag_before_bytes = true; }), promise);
  expect_broken("taken is told before the bytes are read",
                explorer(2, false, [](W& w) { w.taken_before_read = true; }), promise);
  expect_broken("a wait ends only with what comes",
                explorer(2, true, [](W& w) { w.waits_for_the_dead = true; }), "waits for ever");
}

/// Votes: each rank sends and receives two operations. It may take any rank that it waits for to be dead,
/// also one that is only slow.
struct VoteWorld : Model {
  bool votes_in_two_steps = false;  ///< planted: the word is read, then written
  bool votes_of_the_out = false;    ///< planted: a rank that is out may vote
  bool keeps_it_to_itself = false;  ///< planted: a rank alone leaves another one out

  std::size_t ranks = 2;
  std::uint64_t out = 0;
  std::uint64_t sent[most_ranks][most_ranks] = {};  ///< of a sender, to a receiver
  std::uint64_t seen[most_ranks] = {};              ///< whom a voter misses, and the word then; 0: nobody
  std::uint64_t left_out[most_ranks] = {};          ///< by a rank, for itself
  bool ended[most_ranks] = {}, told[most_ranks] = {}, dead[most_ranks] = {};

  [[nodiscard]] bool is_out(std::size_t rank) const { return (out >> rank & 1) != 0; }
  [[nodiscard]] bool leaves(std::size_t me, std::size_t peer) const {
    return (left_out[me] >> peer & 1) != 0;
  }
  [[nodiscard]] std::string print() const {
    std::string text = std::to_string(out);
    for (std::size_t i = 0; i < ranks; ++i) {
      for (std::size_t j = 0; j < ranks; ++j) text += "," + std::to_string(sent[i][j]);
      text += "," + std::to_string(seen[i]) + "," + std::to_string(left_out[i]);
      text += ended[i] ? "e" : "", text += told[i] ? "t" : "", text += dead[i] ? "d" : "";
    }
    return text;
  }
  /// Those that went through to the end leave out what all leave out, and one of the living does.
  void at_end() {
    bool any = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (ended[rank]) require((left_out[rank] & ~out) == 0, "a rank leaves out another one than all do");
      any = any || (ended[rank] && !is_out(rank));
    }
    require(any, "no rank goes on");
  }
};
using V = VoteWorld;

/// The first rank for which `me` waits in vain; most_ranks: none.
std::size_t missed_by(const V& w, std::size_t me, std::uint64_t epoch) {
  for (std::size_t peer = 0; peer < w.ranks; ++peer)
    if (peer != me && !w.leaves(me, peer) && w.sent[peer][me] < epoch) return peer;
  return most_ranks;
}

void vote(V& w, std::size_t me, std::size_t peer, std::uint64_t seen) {
  const auto bit = std::uint64_t{1} << peer;
  w.left_out[me] |= bit;
  if (w.keeps_it_to_itself) return;
  w.out = w.votes_of_the_out ? seen | bit : moe::after_vote(seen, static_cast<std::uint32_t>(me), bit);
}

/// A rank sees that it waits in vain, and votes after that: what it misses may come in between.
int take_part(V& w, std::size_t me, std::uint64_t epoch, int again) {
  if (w.dead[me]) return end_of_thread;
  if (w.seen[me] != 0) {
    const std::uint64_t seen = std::exchange(w.seen[me], 0), read = seen & 0xff;
    const bool is_planted = w.votes_in_two_steps || w.votes_of_the_out;
    if (w.is_out(me) && !is_planted) return w.told[me] = true, end_of_thread;
    vote(w, me, (seen >> 8) - 1, w.votes_in_two_steps ? read : w.out);
    return again;
  }
  const std::size_t peer = missed_by(w, me, epoch);
  if (peer == most_ranks) return next_step;
  w.seen[me] = (peer + 1) << 8 | w.out;
  return again;
}

Thread<V> voting_rank(std::size_t me) {
  Thread<V> thread{"rank " + std::to_string(me), {}};
  for (std::uint64_t epoch = 1; epoch <= 2; ++epoch) {
    thread.steps.emplace_back("sends " + std::to_string(epoch), [=](V& w) {
      if (w.dead[me]) return end_of_thread;
      if (w.is_out(me)) return w.told[me] = true, end_of_thread;
      for (std::size_t peer = 0; peer < w.ranks; ++peer)
        if (!w.leaves(me, peer)) w.sent[me][peer] = epoch;
      return next_step;
    });
    const int here = static_cast<int>(thread.steps.size());
    thread.steps.emplace_back("receives " + std::to_string(epoch),
                              [=](V& w) { return take_part(w, me, epoch, here); });
  }
  thread.steps.emplace_back("ends", [=](V& w) {
    if (!w.dead[me]) w.ended[me] = true;
    return next_step;
  });
  return thread;
}

Explorer<V> voting(
    std::size_t ranks, bool one_dies, const std::function<void(V&)>& change = [](V&) {}) {
  std::vector<Thread<V>> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) threads.push_back(voting_rank(rank));
  if (one_dies)
    threads.push_back({"death", {{"rank 1 dies", [](V& w) {
                                    if (!w.is_out(0)) w.dead[1] = true;  // one of the living is to go on
                                    return next_step;
                                  }}}});
  return {[=] {
            auto world = std::make_unique<V>();
            world->ranks = ranks;
            change(*world);
            return world;
          },
          std::move(threads)};
}

TEST(MoEVotes, leave_one_mask_and_a_rank_that_goes_on) {
  expect_kept("two ranks vote", voting(2, false));
  expect_kept("three ranks vote", voting(3, false));
}

TEST(MoEVotes, of_which_a_voter_dies_leave_one_mask) {
  expect_kept("two ranks vote, one dies", voting(2, true));
}

TEST(MoEVotes, find_planted_defects) {
  expect_broken("a vote is read, then written", voting(2, false, [](V& w) { w.votes_in_two_steps = true; }),
                "a rank leaves out another one than all do");
  expect_broken("a rank that is out votes", voting(2, false, [](V& w) { w.votes_of_the_out = true; }),
                "no rank goes on");
  expect_broken("a rank leaves another one out alone",
                voting(2, false, [](V& w) { w.keeps_it_to_itself = true; }),
                "a rank leaves out another one than all do");
}

}  // namespace
}  // namespace headrace::lifecycle::moe_order
