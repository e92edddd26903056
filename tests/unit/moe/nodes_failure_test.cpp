// SPDX-License-Identifier: Apache-2.0
// Ranks of other nodes that end, stop or come late, over tcp.
#include "ranks.hpp"

#include <atomic>
#include <string>
#include <thread>

namespace headrace::moe {
namespace {

using namespace std::chrono_literals;

/// Ranks that take part are never so late, also on a busy machine.
constexpr auto late_after = 3s;

MoEConfig nodes_of(int ranks, int ranks_per_node, std::chrono::nanoseconds wait_limit) {
  MoEConfig config;
  config.ranks = ranks, config.ranks_per_node = ranks_per_node;
  config.experts = 2 * ranks, config.top_k = 2, config.hidden = 16, config.max_tokens = 40;
  config.dtype = config.combine_dtype = DType::float32;
  config.wait_limit = wait_limit;
  return config;
}

/// All but one make a step together, and another one.
void expect_survivors_go_on(Ranks& ranks, const MoEConfig& config, int lost,
                            std::initializer_list<Code> codes) {
  const Mask mask = mask_of_all(static_cast<std::uint32_t>(config.ranks)) & ~(Mask{1} << lost);
  const Step first(config, mask, 1), second(config, mask, 2);
  ranks.run([&](int number) {
    if (number == lost) return;
    Rank& rank = ranks[number];
    Routing routing = rank.new_routing();
    const auto late = first.dispatch(rank, ranks.of(number), routing);
    ASSERT_FALSE(late);
    EXPECT_NE(std::find(codes.begin(), codes.end(), late.code()), codes.end()) << late.error().message;
    EXPECT_NE(late.error().message.find(fmt::format("rank {}", lost)), std::string::npos)
        << late.error().message;
    ASSERT_TRUE(rank.failure());
    EXPECT_EQ(rank.failure()->peer, lost);
    EXPECT_EQ(rank.active(), mask);
    const auto combined = first.combine(rank, number, routing);
    EXPECT_TRUE(combined) << combined.error().message;
    const auto again = second.dispatch(rank, ranks.of(number), routing);
    EXPECT_TRUE(again) << again.error().message;
    EXPECT_TRUE(second.combine(rank, number, routing));
  });
}

/// The rank would have forwarded rows: those of the first step may be missing, which is told.
void expect_survivors_go_on_soon(Ranks& ranks, const MoEConfig& config, int lost, const Step& first) {
  const Mask mask = mask_of_all(static_cast<std::uint32_t>(config.ranks)) & ~(Mask{1} << lost);
  const Step second(config, mask, 6);
  ranks.run([&](int number) {
    if (number == lost) return;
    Rank& rank = ranks[number];
    const auto at = static_cast<std::size_t>(number);
    Routing routing = rank.new_routing();
    Output out(ranks.of(number));
    Bytes sums(first.sums[at].size());
    const auto sent = rank.dispatch(argument_of(first.inputs[at]), out.argument(), routing);
    const auto combined = rank.combine({.rows = first.results[at].data()}, {.rows = sums.data()}, routing);
    EXPECT_TRUE(!sent || !combined);
    for (const auto* const done : {&sent, &combined}) {
      if (*done) continue;
      EXPECT_TRUE(done->code() == Code::peer_lost || done->code() == Code::timed_out);
      const std::string& text = done->error().message;
      EXPECT_TRUE(text.find(fmt::format("rank {}", lost)) != std::string::npos ||
                  text.find("has not got all rows of rank") != std::string::npos)
          << text;
    }
    Routing next = rank.new_routing();
    const auto again = second.dispatch(rank, ranks.of(number), next);
    EXPECT_TRUE(again) << again.error().message;
    EXPECT_TRUE(second.combine(rank, number, next));
    EXPECT_EQ(rank.active(), mask);
  });
}

TEST(MoENodeFailures, a_far_rank_that_is_late_is_named_and_left_out_by_all) {
  const MoEConfig config = nodes_of(4, 1, late_after);
  Ranks ranks(config);
  expect_survivors_go_on(ranks, config, 3, {Code::timed_out, Code::peer_lost});
}

/// Rank 2 has no rank like it on the second node, so it forwards nothing.
TEST(MoENodeFailures, a_late_rank_of_the_first_node_is_left_out_by_both_nodes) {
  const MoEConfig config = nodes_of(5, 3, late_after);
  Ranks ranks(config);
  expect_survivors_go_on(ranks, config, 2, {Code::timed_out, Code::peer_lost});
}

TEST(MoENodeFailures, a_late_rank_that_forwards_is_left_out_by_both_nodes) {
  const MoEConfig config = nodes_of(4, 2, late_after);
  Ranks ranks(config);
  expect_survivors_go_on_soon(ranks, config, 3, Step(config, 0b0111, 5));
}

/// Nobody tells the others: their posts to it fail.
TEST(MoENodeFailures, a_far_rank_that_has_ended_is_not_waited_for) {
  const MoEConfig config = nodes_of(4, 1, 1min);
  Ranks ranks(config);
  ranks.end(3);
  expect_survivors_go_on(ranks, config, 3, {Code::peer_lost});
}

/// The votes are lost with the first node.
TEST(MoENodeFailures, without_the_first_node_all_stop_and_say_so) {
  const MoEConfig config = nodes_of(3, 1, 1min);
  Ranks ranks(config);
  ranks.end(0);
  ranks.run([&](int number) {
    if (number == 0) return;
    Rank& rank = ranks[number];
    Routing routing = rank.new_routing();
    Output out(ranks.of(number));
    const auto lost = rank.dispatch({}, out.argument(), routing);
    ASSERT_EQ(lost.code(), Code::peer_lost);
    EXPECT_EQ(lost.error().message,
              fmt::format("rank 0 is gone: rank {} waited for its counts in dispatch 1 (expected 1, seen 0). "
                          "No rank of the node that counts the votes against ranks has answered: "
                          "rank {} goes no further",
                          number, number));
    EXPECT_TRUE(rank.failure()->undecided);
    const auto later = rank.dispatch({}, out.argument(), routing);
    EXPECT_EQ(later.code(), Code::canceled);
    EXPECT_TRUE(later.error().message.ends_with(
        "goes no further: take it back with regroup, or open a new MoE on all ranks"))
        << later.error().message;
  });
}

/// Rank 1 has sent what it had, and would bring rows of rank 3 to rank 0.
TEST(MoENodeFailures, rows_that_a_dead_rank_has_not_forwarded_are_told_to_both_ends) {
  const MoEConfig config = nodes_of(4, 2, 1min);
  Ranks ranks(config);
  const Step first(config, 0b1111, 5);
  Routing of_dead = ranks[1].new_routing();
  ASSERT_TRUE(ranks[1].dispatch_send(argument_of(first.inputs[1]), of_dead));
  const WindowLayout layout = window_layout(config);
  for (const int far : {2, 3})
    while (ranks.window(far).load(layout.card_at(1, 1)) != 1) std::this_thread::yield();
  ranks.end(1);
  expect_survivors_go_on_soon(ranks, config, 1, first);
}

TEST(MoENodeFailures, a_mask_that_is_set_on_one_node_holds_on_all) {
  const MoEConfig config = nodes_of(5, 3, 1min);
  for (const int setter : {1, 3}) {
    Ranks ranks(config);
    ASSERT_TRUE(ranks[setter].set_active(0b11011));
    const Step step(config, 0b11011, 3);
    ranks.run([&](int number) {
      if (number == 2) return;
      Rank& rank = ranks[number];
      Routing routing = rank.new_routing();
      const auto done = step.dispatch(rank, ranks.of(number), routing);
      if (!done) EXPECT_EQ(done.code(), Code::peer_lost) << done.error().message;
      EXPECT_TRUE(step.combine(rank, number, routing));
      EXPECT_EQ(rank.active(), 0b11011U);
    });
    Routing routing = ranks[2].new_routing();
    Output out(ranks.of(2));
    EXPECT_EQ(ranks[2].dispatch({}, out.argument(), routing).code(), Code::canceled);
  }
}

TEST(MoENodeFailures, of_two_ranks_that_miss_each_other_one_goes_on) {
  const MoEConfig config = nodes_of(2, 1, 1s);
  Ranks ranks(config);
  Routing routing = ranks[0].new_routing(), other = ranks[1].new_routing();
  Output out(ranks.of(0));
  const auto late = ranks[0].dispatch({}, out.argument(), routing);
  EXPECT_EQ(late.code(), Code::timed_out) << late.error().message;
  while (ranks[1].active() != 0b01U) std::this_thread::yield();  // it is told soon
  const auto heard = ranks[1].dispatch({}, out.argument(), other);
  ASSERT_EQ(heard.code(), Code::canceled);
  EXPECT_TRUE(heard.error().message.starts_with("rank 0 has left rank 1 out")) << heard.error().message;
}

/// Rows are on their way when a rank ends that needs no more.
TEST(MoENodeFailures, what_a_rank_has_sent_arrives_though_it_ends_at_once) {
  MoEConfig config = nodes_of(2, 1, 1min);
  config.hidden = 2048, config.max_tokens = 64;
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    Ranks ranks(config);
    const Step step(config, 0b11, seed);
    ranks.run([&](int number) {
      Routing routing = ranks[number].new_routing();
      EXPECT_TRUE(step.dispatch(ranks[number], ranks.of(number), routing));
      const auto combined = step.combine(ranks[number], number, routing);
      EXPECT_TRUE(combined) << combined.error().message;
      ranks.end(number);
    });
  }
}

TEST(MoENodeFailures, a_caller_that_is_interrupted_is_out_for_ranks_of_other_nodes) {
  MoEConfig config = nodes_of(2, 1, 1min);
  config.interrupted = [] { return true; };
  Ranks ranks(config);
  Routing routing = ranks[1].new_routing();
  Output out(ranks.of(1));
  const auto ended = ranks[1].dispatch({}, out.argument(), routing);
  ASSERT_EQ(ended.code(), Code::canceled);
  EXPECT_EQ(ended.error().message, "rank 1 was interrupted by its caller in dispatch 1");
  EXPECT_EQ(ranks[0].active(), 0b01U);
}

}  // namespace
}  // namespace headrace::moe
