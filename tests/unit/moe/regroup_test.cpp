// SPDX-License-Identifier: Apache-2.0
// Ranks that leave, come new and come back, without a new MoE.
#include "ranks.hpp"

#include <latch>
#include <string>

namespace headrace::moe {
namespace {

using namespace std::chrono_literals;

MoEConfig three_places() {
  MoEConfig config;
  config.ranks = 3, config.experts = 6, config.top_k = 2, config.hidden = 16, config.max_tokens = 40;
  config.dtype = config.combine_dtype = DType::float32;
  config.wait_limit = 1min;
  return config;
}

class Regrouping : public testing::Test {
 protected:
  /// All members regroup, and make two steps that equal the reference.
  void regroup_and_step(Mask members, std::uint64_t seed) {
    const Step one(config_, members, seed), two(config_, members, seed + 100);
    ranks_.run([&](int number) {
      if ((members >> number & 1) == 0) return;
      const auto met = ranks_.regroup(number, members);
      ASSERT_TRUE(met) << met.error().message;
      step(one, number);
      step(two, number);
      EXPECT_EQ(ranks_[number].active(), members);
    });
  }
  void step(const Step& step, int number) {
    Rank& rank = ranks_[number];
    Routing routing = rank.new_routing();
    EXPECT_TRUE(step.dispatch(rank, ranks_.of(number), routing));
    EXPECT_TRUE(step.combine(rank, number, routing));
  }
  void steps_of_all(std::uint64_t seed) {
    const Step all(config_, 0b111, seed);
    ranks_.run([&](int number) { step(all, number); });
  }
  const MoEConfig config_ = three_places();
  Ranks ranks_{config_};
};

TEST_F(Regrouping, a_rank_that_was_left_out_comes_back) {
  steps_of_all(1);
  ASSERT_TRUE(ranks_[0].set_active(0b011));
  regroup_and_step(0b011, 2);
  Routing routing = ranks_[2].new_routing();
  EXPECT_EQ(ranks_[2].dispatch_send({}, routing).code(), Code::canceled);
  regroup_and_step(0b111, 3);
}

TEST_F(Regrouping, a_new_process_takes_the_place_of_a_dead_one) {
  steps_of_all(1);
  for (const int dead : {2, 0, 1, 0}) {  // rank 0 has the votes in its window
    ranks_.lose(dead);
    regroup_and_step(0b111 & ~bit_of(static_cast<std::uint32_t>(dead)), 4);
    ranks_.replace(dead);
    regroup_and_step(0b111, 5);
  }
}

TEST_F(Regrouping, a_group_grows_and_shrinks) {
  regroup_and_step(0b010, 6);
  regroup_and_step(0b110, 7);
  regroup_and_step(0b111, 8);
  regroup_and_step(0b101, 9);
  Routing routing = ranks_[1].new_routing();
  EXPECT_EQ(ranks_[1].dispatch_send({}, routing).error().message,
            "rank 0 has left rank 1 out, as rank 1 sees in dispatch 13: take it back with regroup, or open a "
            "new MoE on all ranks");
}

TEST_F(Regrouping, that_misses_a_rank_says_which_and_may_be_tried_again) {
  std::latch others(2);
  ranks_.run([&](int number) {
    if (number == 2) return;
    others.arrive_and_wait();
    const auto met = ranks_.regroup(number, 0b111, 1s);  // the other one is there by then
    ASSERT_EQ(met.code(), Code::timed_out);
    EXPECT_EQ(
        met.error().message,
        fmt::format("rank {} waited for rank 2 to regroup: all ranks that take part call it, with the same "
                    "ranks",
                    number));
    Routing routing = ranks_[number].new_routing();
    EXPECT_EQ(ranks_[number].dispatch_send({}, routing).error().message,
              "the ranks have not regrouped: take it back with regroup, or open a new MoE on all ranks");
  });
  regroup_and_step(0b011, 10);
  regroup_and_step(0b111, 11);
}

TEST_F(Regrouping, with_a_dead_rank_names_it) {
  ranks_.lose(1);
  const auto met = ranks_.regroup(0, 0b011);
  EXPECT_EQ(met.code(), Code::peer_lost);
  EXPECT_EQ(met.error().message, "rank 0 waited for rank 1 to regroup, which is gone");
}

TEST_F(Regrouping, needs_operations_that_have_ended_and_dispatches_that_are_new) {
  Routing routing = ranks_[0].new_routing();
  Output out(ranks_.of(0));
  ASSERT_TRUE(ranks_.regroup(0, 0b001));
  ASSERT_TRUE(ranks_[0].dispatch_send({}, routing));
  EXPECT_EQ(ranks_.regroup(0, 0b001).error().message,
            "dispatch 3 is under way: receive it before ranks regroup");
  ASSERT_TRUE(ranks_[0].dispatch_receive(out.argument(), routing));
  ASSERT_TRUE(ranks_.regroup(0, 0b001));
  EXPECT_EQ(ranks_[0].combine_send({}, routing).error().message,
            "the routing has no dispatch that was received: dispatch with it first");
}

/// What an earlier meeting left in the windows counts in no later one.
TEST_F(Regrouping, again_and_again_keeps_ranks_in_step) {
  for (std::uint64_t round = 0; round < 20; ++round) {
    constexpr Mask masks[] = {0b111, 0b011, 0b110, 0b101};
    regroup_and_step(masks[round % 4], 20 + round);
  }
}

}  // namespace
}  // namespace headrace::moe
