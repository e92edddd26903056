// SPDX-License-Identifier: Apache-2.0
// Flags, taken words and masks of two and three ranks, in every order of their steps: a rank sends its parts
// of three operations, two of which are under way at once, and takes those of the others.
#include "moe/epochs.hpp"
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

}  // namespace
}  // namespace headrace::lifecycle::moe_order
