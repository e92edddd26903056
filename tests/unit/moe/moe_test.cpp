// SPDX-License-Identifier: Apache-2.0
// The public face: ranks with an agent each, which map one another's windows.
#include <headrace/moe.hpp>

#include "agent_ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using moe::AgentRanks;
using moe::Bytes;
using moe_reference::of_rank;

MoEConfig three_agents() {
  MoEConfig config;
  config.ranks = 3, config.experts = 7, config.top_k = 2, config.hidden = 64, config.max_tokens = 50;
  config.scale_bytes = 8;
  config.wait_limit = 30s;
  return config;
}

/// A dispatch and a combine of all ranks, compared with the reference.
void step_of_all(AgentRanks& ranks, const MoEConfig& config) {
  moe::Random random(7);
  const auto inputs = moe::random_inputs(random, config, moe::Choice::some_none);
  const auto results = moe::random_results(random, config);
  const auto rows = moe_reference::dispatch(config, inputs);
  const auto sums = moe_reference::combine(config, inputs, rows, results);
  ranks.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    auto routing = ranks[rank].new_routing();
    ASSERT_TRUE(routing);
    moe::Output out(of_rank(config, rank));
    const auto sent = ranks[rank].dispatch(moe::argument_of(inputs[at]), out.argument(), *routing);
    ASSERT_TRUE(sent) << sent.error().message;
    moe::expect_same(out.got, rows[at]);
    EXPECT_EQ(routing->tokens(), inputs[at].count);
    Bytes got(sums[at].size());
    ASSERT_TRUE(ranks[rank].combine({.rows = results[at].data()}, {.rows = got.data()}, *routing));
    EXPECT_TRUE(got == sums[at]);
  });
}

TEST(MoEAgents, joined_by_bytes_make_what_the_reference_makes) {
  AgentRanks ranks(three_agents());
  ranks.exchange_and_join();
  step_of_all(ranks, three_agents());
  step_of_all(ranks, three_agents());
}

TEST(MoEAgents, find_one_another_in_a_store) {
  AgentRanks ranks(three_agents(), {.backends = {"shm"}, .store = "memory:moe"});
  std::jthread publisher([&] {
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.agent(rank).publish());
  });
  ranks.run([&](int rank) { ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s)); });
  step_of_all(ranks, three_agents());
}

TEST(MoEAgents, that_do_not_know_the_others_are_told_what_to_do) {
  AgentRanks ranks(three_agents());
  const auto joined = ranks[1].join(ranks.names(), 1s);
  EXPECT_EQ(joined.code(), Code::not_found);
  EXPECT_EQ(joined.error().message,
            "rank 1, join of \"moe\": rank 0 (agent \"moe0\"): its window \"moe\" is not known: import the "
            "metadata of its agent, made after it has opened, or give the agents a store");
  EXPECT_EQ(ranks[0].join({}, 1s).error().message,
            "rank 0, join of \"moe\": 0 agents are given, expected one for each of 3 ranks");
}

TEST(MoEAgents, with_other_configurations_are_refused) {
  MoEConfig config = three_agents();
  config.ranks = 2;
  AgentRanks ranks(config, {.backends = {"shm"}});
  MoEConfig other = of_rank(config, 1);
  other.name = "other", other.top_k = 3;
  MoEConfig same = of_rank(config, 0);
  same.name = "other";
  MoE one = MoE::open(ranks.agent(0), same).value(), two = MoE::open(ranks.agent(1), other).value();
  ranks.exchange_bytes();
  const auto joined = one.join(ranks.names(), 10s);
  EXPECT_EQ(joined.code(), Code::invalid_argument);
  EXPECT_EQ(
      joined.error().message,
      "rank 0, join of \"other\": rank 1 (agent \"moe1\"): rank 0 has top_k 2, rank 1 has 3: give all ranks "
      "the same configuration");
}

TEST(MoEAgents, in_another_order_are_refused) {
  AgentRanks ranks(three_agents());
  ranks.exchange_bytes();
  const std::vector<std::string> reversed{"moe2", "moe1", "moe0"};
  const auto joined = ranks[1].join(reversed, 10s);
  EXPECT_EQ(joined.code(), Code::invalid_argument);
  EXPECT_EQ(
      joined.error().message,
      "rank 1, join of \"moe\": rank 0 (agent \"moe2\"): it is rank 2, and is given as the agent of rank "
      "0: give the agents in the order of the ranks, the same list on all ranks");
  const auto other = ranks[0].join(reversed, 10s);
  EXPECT_EQ(other.code(), Code::invalid_argument);
  EXPECT_EQ(other.error().message,
            "rank 0, join of \"moe\": agents[0] is \"moe2\", expected \"moe0\", the agent of this rank: give "
            "the agents in the order of the ranks, the same list on all ranks");
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s));
  step_of_all(ranks, three_agents());
}

/// Two agents have a window of rank 2.
TEST(MoEAgents, in_lists_that_differ_are_refused_on_both_sides) {
  const MoEConfig config = three_agents();
  AgentRanks ranks(config);
  Agent twin = Agent::open("twin", {.backends = {"shm"}}).value();
  MoE of_twin = MoE::open(twin, of_rank(config, 2)).value();
  ranks.exchange_bytes();
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(ranks.agent(rank).import_metadata(*twin.export_metadata()));
  ASSERT_TRUE(ranks[0].join(ranks.names(), 30s));
  const auto joined = ranks[1].join(std::vector<std::string>{"moe0", "moe1", "twin"}, 30s);
  EXPECT_EQ(joined.code(), Code::invalid_argument);
  EXPECT_EQ(
      joined.error().message,
      "rank 1, join of \"moe\": rank 0 was given another list of agents than rank 1: give all ranks the "
      "same list in join");
  auto routing = ranks[0].new_routing();
  EXPECT_EQ(ranks[0].dispatch_send({}, *routing).error().message,
            "rank 0, dispatch_send of \"moe\": rank 1 was given another list of agents than rank 0: give all "
            "ranks the same list in join");
  for (int rank = 1; rank < 3; ++rank) ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s));
  step_of_all(ranks, config);
}

TEST(MoEAgents, whose_window_is_not_in_the_store_may_have_ended) {
  MoEConfig config = three_agents();
  config.ranks = 2;
  Agent agent = Agent::open("moe0", {.backends = {"shm"}, .store = "memory:moe_ended"}).value();
  MoE moe = MoE::open(agent, config).value();
  const auto joined = moe.join(std::vector<std::string>{"moe0", "moe1"}, 20ms);
  EXPECT_EQ(joined.code(), Code::timed_out);
  EXPECT_EQ(
      joined.error().message,
      "rank 0, join of \"moe\": rank 1 (agent \"moe1\"): its window \"moe\" is not in the store: has it "
      "opened, and published, or has it ended with an error? Look at what it printed");
}

TEST(MoEAgents, an_agent_that_closes_is_lost_to_the_others) {
  AgentRanks ranks(three_agents());
  ranks.exchange_and_join();
  ranks.agent(2).close();
  ranks.run([&](int rank) {
    if (rank == 2) return;
    auto routing = ranks[rank].new_routing();
    moe::Output out(of_rank(three_agents(), rank));
    const auto lost = ranks[rank].dispatch({}, out.argument(), *routing);
    EXPECT_EQ(lost.code(), Code::peer_lost);
    const std::string how = ranks[rank].failure()->voted ? "was left out by another rank" : "is gone";
    EXPECT_EQ(
        lost.error().message,
        fmt::format("rank {}, dispatch of \"moe\": rank 2 {}: rank {} waited for its counts in dispatch 1 "
                    "(expected 1, seen 0)",
                    rank, how, rank));
    EXPECT_EQ(ranks[rank].active(), 0b011U);
    EXPECT_EQ(ranks[rank].failure()->peer, 2);
    EXPECT_TRUE(ranks[rank].dispatch({}, out.argument(), *routing));
  });
}

TEST(MoEAgents, a_rank_comes_back_as_another_agent_of_the_same_name) {
  const MoEConfig config = three_agents();
  AgentRanks ranks(config, {.backends = {"shm"}, .store = "memory:moe_back"});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.agent(rank).publish());
  ranks.run([&](int rank) { ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s)); });
  step_of_all(ranks, config);
  ranks.restart(1, config);
  ranks.run([&](int rank) {
    const auto met = ranks[rank].regroup(ranks.names(), 0b111, 30s);
    ASSERT_TRUE(met) << met.error().message;
  });
  step_of_all(ranks, config);
  EXPECT_EQ(
      ranks[0].regroup(ranks.names(), 0b110, 30s).error().message,
      "rank 0, regroup of \"moe\": ranks leaves out rank 0, which is this one: a rank that leaves does not "
      "call it");
}

TEST(MoEAgents, a_rank_of_another_node_comes_back_as_another_agent_of_the_same_name) {
  MoEConfig config = three_agents();
  config.ranks_per_node = 1, config.nics = {"127.0.0.1"};
  AgentRanks ranks(config, {.backends = {"shm"}, .store = "memory:moe_far_back"});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.agent(rank).publish());
  ranks.run([&](int rank) { ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s)); });
  step_of_all(ranks, config);
  for (const int back : {1, 0}) {
    ranks.restart(back, config);
    ranks.run([&](int rank) {
      const auto met = ranks[rank].regroup(ranks.names(), 0b111, 30s);
      ASSERT_TRUE(met) << met.error().message;
    });
    step_of_all(ranks, config);
  }
}

/// The votes are in the old window of rank 0, which is mapped anew before rank 1 is not found.
TEST(MoEAgents, a_regroup_that_fails_keeps_the_windows_that_are_in_use) {
  const MoEConfig config = three_agents();
  AgentRanks ranks(config, {.backends = {"shm"}, .store = "memory:moe_kept"});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.agent(rank).publish());
  ranks.run([&](int rank) { ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s)); });
  ranks.restart(0, config);
  const auto met = ranks[2].regroup(std::vector<std::string>{"moe0", "nobody", "moe2"}, 0b111, 1s);
  ASSERT_FALSE(met);
  EXPECT_NE(met.error().message.find("rank 1 (agent \"nobody\")"), std::string::npos) << met.error().message;
  EXPECT_EQ(ranks[2].active(), 0b111U);
}

TEST(MoEAgents, a_join_that_waits_for_an_agent_is_ended_by_the_caller_and_by_an_abort) {
  MoEConfig config = three_agents();
  bool interrupted = true;
  config.interrupted = [&] { return std::exchange(interrupted, false); };
  AgentRanks ranks(config, {.backends = {"shm"}, .store = "memory:moe_interrupted"});
  const std::string sentence =
      "rank 0, join of \"moe\": rank 1 (agent \"moe1\"): it was interrupted by its caller";
  EXPECT_EQ(ranks[0].join(ranks.names(), 1h).error().message, sentence);
  ranks[0].abort();
  EXPECT_EQ(ranks[0].join(ranks.names(), 1h).error().message, sentence);
}

/// Rank 1 has come back when rank 2 is not found, and leaves in the next attempt.
TEST(MoEAgents, a_rank_that_came_back_to_a_regroup_that_failed_may_leave) {
  const MoEConfig config = three_agents();
  AgentRanks ranks(config, {.backends = {"shm"}, .store = "memory:moe_left"});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.agent(rank).publish());
  ranks.run([&](int rank) { ASSERT_TRUE(ranks[rank].join(ranks.names(), 30s)); });
  ranks.restart(1, config);
  const std::vector<std::string> without_2{"moe0", "moe1", "nobody"};
  EXPECT_FALSE(ranks[0].regroup(without_2, 0b111, 100ms));
  for (int i = 0; i < 3; ++i) {
    const auto alone = ranks[0].regroup(without_2, 0b001, 30s);
    EXPECT_TRUE(alone) << alone.error().message;
  }
}

TEST(MoEAgents, that_could_not_join_tell_their_reason_to_those_that_wait) {
  MoEConfig config = three_agents();
  config.wait_limit = 50ms;
  AgentRanks ranks(config);
  ranks.exchange_bytes();
  ASSERT_TRUE(ranks[0].join(ranks.names(), 30s));
  EXPECT_FALSE(ranks[1].join({}, 30s));
  EXPECT_TRUE(ranks[2].join(ranks.names(), 30s));
  auto routing = ranks[0].new_routing();
  moe::Output out(of_rank(config, 0));
  const auto late = ranks[0].dispatch({}, out.argument(), *routing);
  EXPECT_EQ(
      late.error().message,
      "rank 0, dispatch of \"moe\": rank 0 waited for counts of rank 1 in dispatch 1: expected 1, seen 0. It "
      "could not join: \"0 agents are given, expected one for each of 3 ranks\"");
}

TEST(MoEAgents, a_mask_cannot_leave_out_this_rank_or_take_one_back) {
  AgentRanks ranks(three_agents());
  EXPECT_EQ(ranks[0].active(), 0b111U);
  ranks.exchange_and_join();
  EXPECT_EQ(ranks[0].set_active(0b110).error().message, "set_active leaves out rank 0, which is this one");
  const auto unknown = ranks[0].set_active(0b100111);
  EXPECT_EQ(unknown.code(), Code::invalid_argument);
  EXPECT_EQ(unknown.error().message, "set_active names rank 5, expected 0 to 2");
  EXPECT_TRUE(ranks[0].set_active(0b101));
  EXPECT_EQ(ranks[0].active(), 0b101U);
  const auto back = ranks[0].set_active(0b111);
  EXPECT_EQ(back.code(), Code::not_supported);
  EXPECT_EQ(back.error().message,
            "set_active names rank 1, which was left out: all ranks call regroup to take it back");
}

TEST(MoEAgents, calls_before_the_join_or_with_the_routing_of_another_are_refused) {
  MoEConfig config = three_agents();
  config.ranks = 1;
  AgentRanks ranks(config), others(config);
  EXPECT_EQ(ranks[0].new_routing().error().message,
            "rank 0, new_routing of \"moe\": it has not joined the other ranks: call join first");
  ASSERT_TRUE(ranks[0].join(ranks.names(), 30s));
  EXPECT_EQ(ranks[0].join(ranks.names(), 1s).error().message,
            "rank 0, join of \"moe\": it has joined before");
  ASSERT_TRUE(others[0].join(ranks.names(), 30s));
  auto foreign = others[0].new_routing();
  moe::Output out(config);
  EXPECT_EQ(ranks[0].dispatch({}, out.argument(), *foreign).error().message,
            "rank 0, dispatch of \"moe\": the routing was made by another MoE: use new_routing of this one");
}

TEST(MoEAgents, a_forked_child_is_refused) {
  MoEConfig config = three_agents();
  config.ranks = 1;
  AgentRanks ranks(config);
  ASSERT_TRUE(ranks[0].join(ranks.names(), 30s));
  auto routing = ranks[0].new_routing();
  moe::Output out(config);
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(ranks[0].dispatch({}, out.argument(), *routing).code() == Code::invalid_argument ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// Rank 0 waits in a dispatch, for rank 1, in another thread of the parent.
TEST(MoEAgents, a_child_that_is_forked_while_a_call_waits_is_refused_at_once) {
  MoEConfig config = three_agents();
  config.ranks = 2;
  config.wait_limit = 60s;
  std::atomic<bool> waits = false, ends = false;
  config.interrupted = [&] {
    waits = true;
    return ends.load();
  };
  AgentRanks ranks(config);
  ranks.exchange_and_join();
  auto routing = ranks[0].new_routing();
  moe::Output out(config);
  std::jthread waiter([&] { static_cast<void>(ranks[0].dispatch({}, out.argument(), *routing)); });
  while (!waits) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const bool refused = ranks[0].dispatch({}, out.argument(), *routing).code() == Code::invalid_argument &&
                         ranks[0].set_active(1).code() == Code::invalid_argument &&
                         ranks[0].check().code() == Code::invalid_argument &&
                         ranks[0].new_routing().code() == Code::invalid_argument &&
                         ranks[0].join(ranks.names(), 1s).code() == Code::invalid_argument;
    ::_exit(refused && ranks[0].active() == 0 && !ranks[0].failure() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ends = true;
}

TEST(MoEAgents, a_wrong_configuration_takes_no_memory) {
  Agent agent = Agent::open("moe", {.backends = {"shm"}}).value();
  MoEConfig config = three_agents();
  config.top_k = 0;
  EXPECT_EQ(MoE::open(agent, config).error().message, "top_k is 0, expected 1 to 32");
  EXPECT_TRUE(agent.regions().empty());
}

}  // namespace
}  // namespace headrace
