// SPDX-License-Identifier: Apache-2.0
// Ranks of several nodes that leave, come new and come back, over tcp; also without the first node.
#include "ranks.hpp"

#include <string>
#include <thread>

namespace headrace::moe {
namespace {

using namespace std::chrono_literals;

struct RegroupShape {
  int ranks, ranks_per_node;
};

class NodeRegrouping : public testing::TestWithParam<RegroupShape> {
 protected:
  static MoEConfig config_of(RegroupShape shape) {
    MoEConfig config;
    config.ranks = shape.ranks, config.ranks_per_node = shape.ranks_per_node;
    config.experts = 2 * shape.ranks, config.top_k = 2, config.hidden = 16, config.max_tokens = 40;
    config.dtype = config.combine_dtype = DType::float32;
    config.wait_limit = 1min;
    return config;
  }
  /// Runs body(number) of each member on a thread of its own.
  void run(Mask members, const std::function<void(int)>& body) {
    ranks_.run([&](int number) {
      if ((members >> number & 1) != 0) body(number);
    });
  }
  /// All members regroup, and make steps that equal the reference.
  void regroup_and_step(Mask members, std::uint64_t seed) {
    const Step one(config_, members, seed), two(config_, members, seed + 100);
    run(members, [&](int number) {
      const auto met = ranks_.regroup(number, members);
      ASSERT_TRUE(met) << met.error().message;
      for (const Step* step : {&one, &two, &one}) make(*step, number);
      EXPECT_EQ(ranks_[number].active(), members);
    });
  }
  void make(const Step& step, int number) {
    Rank& rank = ranks_[number];
    Routing routing = rank.new_routing();
    const auto dispatched = step.dispatch(rank, ranks_.of(number), routing);
    EXPECT_TRUE(dispatched) << dispatched.error().message;
    const auto combined = step.combine(rank, number, routing);
    EXPECT_TRUE(combined) << combined.error().message;
  }
  void step_of_all(std::uint64_t seed) {
    const Step all(config_, all_, seed);
    run(all_, [&](int number) { make(all, number); });
  }
  [[nodiscard]] static Mask without(Mask mask, int rank) {
    return mask & ~bit_of(static_cast<std::uint32_t>(rank));
  }
  const MoEConfig config_ = config_of(GetParam());
  const Mask all_ = mask_of_all(static_cast<std::uint32_t>(config_.ranks));
  const int last_ = config_.ranks - 1;
  Ranks ranks_{config_};
};

INSTANTIATE_TEST_SUITE_P(Shapes, NodeRegrouping,
                         testing::Values(RegroupShape{3, 1}, RegroupShape{4, 2}, RegroupShape{5, 2}),
                         [](const auto& info) {
                           return fmt::format("{}_ranks_{}_a_node", info.param.ranks,
                                              info.param.ranks_per_node);
                         });

TEST_P(NodeRegrouping, a_rank_that_was_left_out_comes_back) {
  step_of_all(1);
  ASSERT_TRUE(ranks_[0].set_active(without(all_, last_)));
  regroup_and_step(without(all_, last_), 2);
  Routing routing = ranks_[last_].new_routing();
  EXPECT_EQ(ranks_[last_].dispatch_send({}, routing).code(), Code::canceled);
  regroup_and_step(all_, 3);
}

TEST_P(NodeRegrouping, a_new_process_takes_the_place_of_a_dead_one) {
  step_of_all(1);
  for (const int dead : {last_, 0, 1}) {  // rank 0 has the votes in its window
    ranks_.end(dead);
    regroup_and_step(without(all_, dead), 4);
    ranks_.replace(dead);
    regroup_and_step(all_, 5);
  }
}

TEST_P(NodeRegrouping, the_others_go_on_without_the_first_node) {
  step_of_all(1);
  Mask others = all_;
  for (int dead = 0; dead < config_.ranks_per_node; ++dead) {
    ranks_.end(dead);
    others = without(others, dead);
  }
  run(others, [&](int number) {
    Routing routing = ranks_[number].new_routing();
    Output out(ranks_.of(number));
    const auto lost = ranks_[number].dispatch({}, out.argument(), routing);
    EXPECT_EQ(lost.code(), Code::peer_lost) << lost.error().message;
    EXPECT_TRUE(ranks_[number].failure()->undecided);
  });
  regroup_and_step(others, 6);
}

/// Votes are counted on the node of the lowest rank that takes part.
TEST_P(NodeRegrouping, one_mask_holds_without_the_first_node) {
  Mask others = all_;
  for (int dead = 0; dead < config_.ranks_per_node; ++dead) {
    ranks_.end(dead);
    others = without(others, dead);
  }
  regroup_and_step(others, 7);
  ASSERT_TRUE(ranks_[last_].set_active(without(others, config_.ranks_per_node)));
  const Step step(config_, without(others, config_.ranks_per_node), 8);
  run(without(others, config_.ranks_per_node), [&](int number) {
    Rank& rank = ranks_[number];
    Routing routing = rank.new_routing();
    const auto done = step.dispatch(rank, ranks_.of(number), routing);
    if (!done) EXPECT_EQ(done.code(), Code::peer_lost) << done.error().message;
    EXPECT_TRUE(step.combine(rank, number, routing));
    EXPECT_EQ(rank.active(), without(others, config_.ranks_per_node));
  });
  Routing routing = ranks_[config_.ranks_per_node].new_routing();
  EXPECT_EQ(ranks_[config_.ranks_per_node].dispatch_send({}, routing).code(), Code::canceled);
}

TEST_P(NodeRegrouping, again_and_again_keeps_ranks_in_step) {
  for (std::uint64_t round = 0; round < 8; ++round) {
    const Mask masks[] = {all_, without(all_, last_), without(all_, 0), without(all_, 1)};
    regroup_and_step(masks[round % 4], 20 + round);
  }
}

TEST_P(NodeRegrouping, that_misses_a_rank_says_which_and_may_be_tried_again) {
  run(without(all_, last_), [&](int number) {
    const auto met = ranks_.regroup(number, all_, 300ms);
    ASSERT_EQ(met.code(), Code::timed_out);
    EXPECT_NE(met.error().message.find("to regroup: all ranks that take part call it"), std::string::npos)
        << met.error().message;
    Routing routing = ranks_[number].new_routing();
    EXPECT_EQ(ranks_[number].dispatch_send({}, routing).error().message,
              "the ranks have not regrouped: take it back with regroup, or open a new MoE on all ranks");
  });
  regroup_and_step(without(all_, last_), 10);
  regroup_and_step(all_, 11);
}

TEST_P(NodeRegrouping, with_a_far_rank_that_has_ended_names_it) {
  ranks_.end(last_);
  const auto met = ranks_[0].regroup(ranks_.windows(), bit_of(0) | bit_of(static_cast<std::uint32_t>(last_)),
                                     Deadline::after(1min));
  EXPECT_EQ(met.code(), Code::peer_lost) << met.error().message;
  EXPECT_NE(met.error().message.find(fmt::format("rank {}", last_)), std::string::npos)
      << met.error().message;
}

/// Two ranks of two nodes, of which one sends by hand.
class NodeGroups : public testing::Test {
 protected:
  static MoEConfig two_nodes() {
    MoEConfig config;
    config.ranks = 2, config.ranks_per_node = 1, config.experts = 2, config.top_k = 1, config.hidden = 16;
    config.dtype = config.combine_dtype = DType::float32;
    config.max_tokens = 40, config.wait_limit = 1min;
    return config;
  }
  [[nodiscard]] Network::Group group(int rank, std::uint64_t dispatches) {
    std::optional<Window> votes;
    if (rank == 0) votes = ranks_.window(0);
    return {0b11, 0, votes, dispatches, dispatches};
  }
  /// What rank 1 has told rank 0 up to now has been taken.
  void flush() {
    const std::uint64_t at = layout_.words_at(1) + offsetof(PeerWords, asks);
    ranks_.network(1).far(0)->tell_meeting({++told_, 0, 0, 0});
    while (ranks_.window(0).load(at) != told_) std::this_thread::yield();
  }
  Ranks ranks_{two_nodes()};
  const WindowLayout layout_ = window_layout(two_nodes());
  std::uint64_t told_ = 0;
};

TEST_F(NodeGroups, take_no_vote_and_no_mask_of_an_earlier_one) {
  FarWindow& to = *ranks_.network(1).far(0);
  ranks_.network(0).start(group(0, 10));
  for (const std::uint64_t of : {0, 8}) {
    to.signal(Signal::Kind::vote, OfGroup{of, Vote{1, 0}.bits()}.payload());
    to.signal(Signal::Kind::votes_low, OfGroup{of, 0b01}.payload());
    to.signal(Signal::Kind::left_out, OfGroup{of}.payload());
  }
  ASSERT_TRUE(to.clear(Deadline::after(1min)));
  flush();
  EXPECT_EQ(ranks_[0].active(), 0b11U);
  EXPECT_EQ(ranks_.window(0).load(layout_.words_at(1) + offsetof(PeerWords, left_out)), 0U);
  to.signal(Signal::Kind::vote, OfGroup{10, Vote{1, 0}.bits()}.payload());
  while (ranks_[0].active() != 0b10U) std::this_thread::yield();
}

/// A new process knows no numbers of operations before it has met the others, and of the epoch low bits come.
TEST_F(NodeGroups, hold_what_comes_from_the_next_one_until_they_know_its_numbers) {
  constexpr std::uint64_t group_of_long_ago = 3 * (std::uint64_t{1} << Chunks::epoch_bits) / 4;
  const std::uint64_t epoch = group_of_long_ago + 1;
  const std::uint64_t flag = layout_.card_at(epoch, 1) + offsetof(CardHead, epoch);
  ASSERT_TRUE(ranks_.network(0).begin_meeting(0b11, Deadline::after(1min)));
  ranks_.network(1).far(0)->tell_card(epoch);
  ASSERT_TRUE(ranks_.network(1).far(0)->clear(Deadline::after(1min)));
  flush();
  EXPECT_EQ(ranks_.window(0).load(flag), 0U);
  ranks_.network(0).start(group(0, group_of_long_ago));
  EXPECT_EQ(ranks_.window(0).load(flag), epoch);
  ranks_.network(1).far(0)->tell_card(epoch - 2);  // late, of an earlier group
  ASSERT_TRUE(ranks_.network(1).far(0)->clear(Deadline::after(1min)));
  flush();
  EXPECT_EQ(ranks_.window(0).load(flag), epoch);
}

}  // namespace
}  // namespace headrace::moe
