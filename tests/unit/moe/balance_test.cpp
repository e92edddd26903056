// SPDX-License-Identifier: Apache-2.0
// Replicas of experts: how they are chosen, and plans that give each rank its share.
#include <headrace/moe_plan.hpp>

#include "moe/balance.hpp"
#include "moe/plan.hpp"
#include "ranks.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

namespace headrace::moe {
namespace {

/// Four ranks with five places each, the last of which is free: 16 experts.
MoEConfig places() {
  MoEConfig config;
  config.ranks = 4, config.experts = 20, config.top_k = 2, config.hidden = 4, config.max_tokens = 300;
  config.dtype = config.combine_dtype = DType::float32;
  config.wait_limit = std::chrono::minutes(1);
  return config;
}
std::vector<std::int32_t> experts_of_places() {
  std::vector<std::int32_t> experts;
  for (std::int32_t place = 0; place < 20; ++place)
    experts.push_back(place % 5 == 4 ? -1 : place / 5 * 4 + place % 5);
  return experts;
}

/// Tokens with rows of 1 and weights of 1, whose experts are chosen by Zipf's law.
std::vector<Tokens> skewed_tokens(const MoEConfig& config, std::uint64_t seed) {
  Random random(seed);
  std::vector<Tokens> inputs;
  for (int rank = 0; rank < config.ranks; ++rank) {
    Tokens tokens;
    tokens.count = 200 + 20 * rank;
    const std::vector<float> ones(static_cast<std::size_t>(tokens.count * config.hidden), 1.0F);
    const auto* const bytes = reinterpret_cast<const std::byte*>(ones.data());
    tokens.rows.assign(bytes, bytes + ones.size() * sizeof(float));
    for (std::int64_t token = 0; token < tokens.count; ++token) {
      const std::int64_t one = choose(random, Choice::zipf, 16);
      tokens.experts.push_back(one);
      std::int64_t two = one;
      while (two == one) two = choose(random, Choice::zipf, 16);
      tokens.experts.push_back(two);
    }
    inputs.push_back(std::move(tokens));
  }
  return inputs;
}

std::vector<std::int64_t> counts_of(const std::vector<Tokens>& inputs, std::size_t experts) {
  std::vector<std::int64_t> counts(inputs.size() * experts);
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    for (const std::int64_t expert : inputs[rank].experts)
      ++counts[rank * experts + static_cast<std::size_t>(expert)];
  return counts;
}

/// Runs a step in which the expert e multiplies rows by e + 1. Returns the entries that each rank got.
std::vector<std::int64_t> run_step(const MoEConfig& config, const std::vector<Tokens>& inputs,
                                   const std::vector<std::int32_t>& experts,
                                   const std::function<MoEReplicas(int)>& table) {
  Ranks ranks(config);
  std::vector<std::int64_t> got(inputs.size());
  ranks.run([&](int number) {
    const auto at = static_cast<std::size_t>(number);
    const MoEReplicas replicas = table(number);
    MoETokens tokens = argument_of(inputs[at]);
    tokens.replicas = &replicas;
    Routing routing = ranks[number].new_routing();
    Output out(ranks.of(number));
    ASSERT_TRUE(ranks[number].dispatch(tokens, out.argument(), routing));
    got[at] = std::accumulate(out.got.counts.begin(), out.got.counts.end(), std::int64_t{0});
    std::vector<float> results(out.got.rows.size() / sizeof(float));
    for (int local = 0; local < ranks.of(number).local_experts(); ++local) {
      const auto place = static_cast<std::size_t>(ranks.of(number).first_expert(number) + local);
      const auto row_of = [&](int of) {
        return out.got.first_rows[static_cast<std::size_t>(of)] * config.hidden;
      };
      for (std::int64_t i = row_of(local); i < row_of(local + 1); ++i)
        results[static_cast<std::size_t>(i)] = static_cast<float>(experts[place] + 1);
    }
    std::vector<float> sums(static_cast<std::size_t>(inputs[at].count * config.hidden));
    ASSERT_TRUE(ranks[number].combine({.rows = results.data()}, {.rows = sums.data()}, routing));
    for (std::size_t token = 0; token < static_cast<std::size_t>(inputs[at].count); ++token) {
      const auto named = inputs[at].experts.begin() + static_cast<std::ptrdiff_t>(token * 2);
      ASSERT_EQ(sums[token * 4], static_cast<float>(named[0] + named[1] + 2));
    }
  });
  return got;
}

TEST(MoEPlans, give_no_rank_more_than_its_share_and_the_same_sums) {
  const MoEConfig config = places();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto inputs = skewed_tokens(config, seed);
    const auto counts = counts_of(inputs, 16);
    const auto plan = moe_plan(config, experts_of_places(), counts);
    ASSERT_TRUE(plan) << plan.error().message;
    const auto got = run_step(config, inputs, plan->experts, [&](int rank) { return plan->of_group(rank); });
    EXPECT_EQ(got, plan->loads);
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    EXPECT_LE(static_cast<double>(*std::ranges::max_element(got)), 1.05 * static_cast<double>(all) / 4);
  }
}

/// 64 ranks with eight experts and two free places each, by Zipf's law without chance.
TEST(MoEPlans, of_many_ranks_stay_within_a_twentieth_of_the_mean) {
  MoEConfig config = places();
  for (const int ranks : {2, 3, 8, 64}) {
    config.ranks = ranks, config.experts = ranks * 10;
    std::vector<std::int32_t> experts;
    for (int place = 0; place < config.experts; ++place)
      experts.push_back(place % 10 >= 8 ? -1 : place / 10 * 8 + place % 10);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks * ranks * 8));
    for (std::size_t i = 0; i < counts.size(); ++i)
      counts[i] = 10000 / (1 + static_cast<std::int64_t>(i) % (ranks * 8));
    const auto plan = moe_plan(config, experts, counts);
    ASSERT_TRUE(plan);
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    EXPECT_EQ(std::accumulate(plan->loads.begin(), plan->loads.end(), std::int64_t{0}), all);
    EXPECT_LE(static_cast<double>(*std::ranges::max_element(plan->loads)),
              1.05 * static_cast<double>(all) / ranks);
  }
}

TEST(MoEPlans, do_what_they_can_without_free_places) {
  MoEConfig config = places();
  config.ranks = 2, config.experts = 3;
  // Both ranks hold expert 0; rank 1 holds expert 1 as well.
  const std::int32_t experts[] = {0, 0, 1};
  config.experts_of_ranks = {1, 2};
  const std::int64_t counts[] = {90, 10, 10, 10};
  const auto plan = moe_plan(config, experts, counts);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->loads, (std::vector<std::int64_t>{60, 60}));
  EXPECT_EQ(plan->until, (std::vector<std::int64_t>{60, 100, 20}));  // of 100 entries, 40 go to rank 1
  EXPECT_EQ(plan->before, (std::vector<std::int64_t>{0, 0, 90, 10}));
}

/// Two ranks with two experts and two free places each. All entries are for the experts of rank 0.
TEST(MoEPlans, leave_a_replica_in_the_place_that_holds_it) {
  MoEConfig config = places();
  config.ranks = 2, config.experts = 8;
  const std::int32_t experts[] = {0, 1, -1, -1, 2, 3, -1, -1};
  const std::int64_t counts[] = {30, 70, 0, 0, 30, 70, 0, 0};
  const auto plan_of = [&](std::array<std::int32_t, 8> held) {
    return moe::make_plan(config, {.experts = experts, .counts = counts, .held = held}).value();
  };
  const MoEPlan fresh = plan_of({0, 1, -1, -1, 2, 3, -1, -1});
  EXPECT_EQ(fresh.experts, (std::vector<std::int32_t>{0, 1, -1, -1, 2, 3, 1, -1}));
  EXPECT_EQ(fresh.loads, (std::vector<std::int64_t>{100, 100}));
  const MoEPlan kept = plan_of({0, 1, -1, -1, 2, 3, 0, 1});
  EXPECT_EQ(kept.experts, (std::vector<std::int32_t>{0, 1, -1, -1, 2, 3, -1, 1}));
  EXPECT_EQ(kept.places, (std::vector<std::int32_t>{0, 1, 7, 4, 5}));
  EXPECT_EQ(kept.until, fresh.until);
}

/// Rank 1 of three is out. Nobody else keeps expert 2; expert 1 has a place on rank 2, too.
TEST(MoEPlans, give_nothing_to_ranks_that_do_not_take_part) {
  MoEConfig config = places();
  config.ranks = 3, config.experts = 9;
  const std::int32_t experts[] = {0, -1, -1, 1, 2, -1, 1, 3, -1};
  const std::int64_t counts[] = {60, 10, 500, 0, 0, 0, 0, 0, 60, 10, 500, 0};
  const auto plan = moe::make_plan(config, {.experts = experts, .counts = counts, .active = 0b101}).value();
  EXPECT_EQ(plan.loads, (std::vector<std::int64_t>{70, 0, 70}));
  EXPECT_EQ(plan.experts, (std::vector<std::int32_t>{0, -1, -1, 1, 2, -1, 1, 3, 0}));
  const auto begin = static_cast<std::size_t>(plan.first[1]), end = static_cast<std::size_t>(plan.first[2]);
  EXPECT_EQ(end - begin, 2U);
  EXPECT_EQ(plan.until[begin], 0);  // nothing goes to its place on rank 1
  EXPECT_EQ(plan.until[begin + 1], 20);
  EXPECT_EQ(plan.first[3] - plan.first[2], 1);  // expert 2 has its place on rank 1, which a dispatch skips
}

TEST(MoEPlans, refuse_what_cannot_be) {
  const MoEConfig config = places();
  std::vector<std::int32_t> experts = experts_of_places();
  const std::vector<std::int64_t> counts(64);
  const auto sentence = [&](std::span<const std::int64_t> of) {
    const auto plan = moe_plan(config, experts, of);
    return plan ? "" : plan.error().message;
  };
  EXPECT_EQ(sentence(counts), "");
  EXPECT_EQ(sentence(std::span(counts).first(60)), "60 counts are given, expected 4 groups * 16 experts");
  experts[0] = -1;
  EXPECT_EQ(sentence(counts), "expert 0 has no place: give each one at least");
  experts[0] = 20;
  EXPECT_EQ(sentence(counts), "the experts of places are up to 20, expected -1 to 19, and one at least");
  experts.pop_back();
  EXPECT_EQ(sentence(counts), "19 places are given, expected those of the configuration, 20");
}

/// Expert 0 has a place on each rank; the others have one.
struct HotTable {
  HotTable() {
    for (int rank = 0; rank < 4; ++rank) places.push_back(rank * 5 + 4);
    first = {0, 4};
    const auto experts_at = experts_of_places();
    for (std::int32_t place = 1; place < 20; ++place) {
      if (experts_at[static_cast<std::size_t>(place)] < 1) continue;
      places.push_back(place);
      first.push_back(static_cast<std::int32_t>(places.size()));
    }
    experts = experts_at;
    for (std::int32_t& expert : experts) expert = std::max(expert, 0);
    replicas.experts = 16, replicas.first = first.data(), replicas.places = places.data();
  }
  std::vector<std::int32_t> first, places, experts;
  MoEReplicas replicas;
};

TEST(MoEReplicaTables, in_turn_and_least_loaded_spread_a_hot_expert) {
  const MoEConfig config = places();
  std::vector<Tokens> inputs = skewed_tokens(config, 9);
  for (Tokens& tokens : inputs)
    for (std::size_t i = 0; i < tokens.experts.size(); ++i)
      tokens.experts[i] = i % 2 == 0 ? 0 : 1;  // expert 1 has one place, on rank 0
  HotTable table;
  const std::int64_t tokens = 200 + 220 + 240 + 260;
  auto got = run_step(config, inputs, table.experts, [&](int) { return table.replicas; });
  EXPECT_EQ(got, (std::vector<std::int64_t>{tokens + tokens / 4, tokens / 4, tokens / 4, tokens / 4}));
  table.replicas.choice = MoEChoice::least_loaded;
  got = run_step(config, inputs, table.experts, [&](int) { return table.replicas; });
  for (int rank = 1; rank < 4; ++rank)
    EXPECT_NEAR(static_cast<double>(got[static_cast<std::size_t>(rank)]), static_cast<double>(tokens) / 3, 8);
  const std::int64_t loads[] = {0, 1000, 1000, 1000};  // so nothing of the hot expert leaves rank 0
  table.replicas.loads = loads;
  got = run_step(config, inputs, table.experts, [&](int) { return table.replicas; });
  EXPECT_EQ(got[0], 2 * tokens);
}

TEST(MoEReplicaTables, pass_over_ranks_that_do_not_take_part) {
  const MoEConfig config = places();
  HotTable table;
  for (const MoEChoice choice : {MoEChoice::in_turn, MoEChoice::least_loaded}) {
    table.replicas.choice = choice;
    ReplicaChooser chooser(config);
    const Spread spread = spread_of(config);
    chooser.begin(table.replicas, spread, 0, 0b1101);
    int of_rank[4] = {};
    for (int i = 0; i < 40; ++i) ++of_rank[chooser.place_of(0) / 5];
    EXPECT_EQ(of_rank[1], 0);
    EXPECT_GE(of_rank[0], 10);
    EXPECT_GE(of_rank[2], 10);
    EXPECT_EQ(chooser.place_of(4), 5U);  // its one place, on the rank that is left out
  }
}

TEST(MoEReplicaTables, that_are_wrong_are_refused) {
  HotTable table;
  const auto sentence = [&](const MoEReplicas& replicas) {
    const auto checked = check_replicas(replicas, 20);
    return checked ? "" : checked.error().message;
  };
  EXPECT_EQ(sentence(table.replicas), "");
  MoEReplicas wrong = table.replicas;
  wrong.experts = 21;
  EXPECT_EQ(sentence(wrong),
            "replicas has 21 experts, expected 1 to the 20 of the configuration, which are its places");
  wrong = table.replicas, wrong.places = nullptr;
  EXPECT_EQ(sentence(wrong), "replicas has no places, or they do not begin at 0");
  wrong = table.replicas, wrong.choice = MoEChoice::by_share;
  EXPECT_EQ(sentence(wrong),
            "choice of replicas is 2 (by_share), expected in_turn, least_loaded, or by_share with until");
  table.places[5] = 20;
  EXPECT_EQ(sentence(table.replicas), "expert 2 has place 20 in replicas, expected 0 to 19");
  table.first[2] = table.first[1];
  EXPECT_EQ(sentence(table.replicas), "expert 1 has 0 places in replicas, expected 1 to 20");
}

TEST(MoEReplicaShares, end_where_they_say_and_begin_anew_behind_the_last) {
  const std::int64_t until[] = {2, 2, 5};
  const std::uint32_t expected[] = {0, 0, 2, 2, 2, 0, 0, 2};
  for (std::uint64_t number = 0; number < 8; ++number)
    EXPECT_EQ(replica_by_share(until, 3, number), expected[number]);
  const std::int64_t none[] = {0, 0};
  EXPECT_EQ(replica_by_share(none, 2, 7), 1U);
}

}  // namespace
}  // namespace headrace::moe
