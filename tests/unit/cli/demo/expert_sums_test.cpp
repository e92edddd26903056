// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/expert_sums.hpp"

#include "cli/demo/expert_model.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe.hpp>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace headrace::cli::demo {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

constexpr ModelSizes sizes{.width = 64, .layers = 1, .experts = 8, .top_k = 4};

TEST(AddResults, the_results_of_a_rank_are_added_first_then_the_ranks_in_order_then_x) {
  // 1 is half of the last place of 2^24, so every other order gives another sum.
  const float large = 16777216;
  std::vector<float> x{0, -large};
  add_results(std::vector<ExpertResult>{{1, 1, {1, 1}}, {0, 1, {large, large}}, {1, 1, {1, 1}}}, x);
  EXPECT_THAT(x, ElementsAre(large + 2, 2));
  x = {0, 1};
  add_results(std::vector<ExpertResult>{{1, 1, {1, 0}}, {0, 1, {large, large}}, {2, 1, {1, 0}}}, x);
  EXPECT_THAT(x, ElementsAre(large, large));
}

TEST(AddResults, a_result_counts_by_its_weight) {
  std::vector<float> x{1};
  add_results(std::vector<ExpertResult>{{0, 0.25F, {8}}, {0, 0.75F, {4}}}, x);
  EXPECT_THAT(x, ElementsAre(6));
}

std::vector<float> random_row(std::mt19937& random) {
  std::normal_distribution<float> numbers;
  std::vector<float> row(static_cast<std::size_t>(sizes.width));
  for (float& number : row) number = numbers(random);
  return row;
}

/// One token of rank 0, the results of all experts, and x before they are added.
struct Token {
  std::vector<std::int64_t> experts;
  std::vector<float> weights;
  std::vector<std::vector<float>> results;
  std::vector<float> x;
};

Token random_token(unsigned seed) {
  std::mt19937 random(seed);
  Token token;
  for (std::int64_t expert = 0; expert < sizes.experts; ++expert) token.experts.push_back(expert);
  std::ranges::shuffle(token.experts, random);
  token.experts.resize(static_cast<std::size_t>(sizes.top_k));
  for (std::size_t k = 0; k < token.experts.size(); ++k)
    token.weights.push_back(std::uniform_real_distribution<float>(0, 1)(random));
  for (std::int64_t expert = 0; expert < sizes.experts; ++expert) token.results.push_back(random_row(random));
  token.x = random_row(random);
  return token;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& row) {
  std::vector<std::uint32_t> bits;
  for (const float number : row) bits.push_back(std::bit_cast<std::uint32_t>(number));
  return bits;
}

std::vector<float> added_alone(const Token& token, const MoEConfig& config) {
  std::vector<ExpertResult> results;
  for (std::size_t k = 0; k < token.experts.size(); ++k) {
    const auto expert = static_cast<std::size_t>(token.experts[k]);
    results.push_back({rank_of_expert(config, token.experts[k]), token.weights[k], token.results[expert]});
  }
  std::vector<float> x = token.x;
  add_results(results, x);
  return x;
}

/// Dispatches the token, of rank 0 alone, and combines. Returns x of rank 0.
std::vector<float> added_by(MoE& moe, const Token& token) {
  const MoEConfig& config = moe.config();
  const auto width = static_cast<std::size_t>(config.hidden);
  std::vector<float> x = token.x, rows(static_cast<std::size_t>(config.output_rows()) * width), results(rows);
  std::vector<std::int64_t> firsts(static_cast<std::size_t>(config.local_experts()) + 1);
  MoERouting routing = moe.new_routing().value();
  MoETokens tokens;
  tokens.count = config.rank == 0 ? 1 : 0;
  tokens.rows = x.data();
  tokens.experts = token.experts.data();
  tokens.weights = token.weights.data();
  MoERows out;
  out.rows = rows.data();
  out.first_rows = firsts.data();
  EXPECT_TRUE(moe.dispatch(tokens, out, routing));
  for (std::size_t expert = 0; expert + 1 < firsts.size(); ++expert)
    for (auto row = static_cast<std::size_t>(firsts[expert]);
         row < static_cast<std::size_t>(firsts[expert + 1]); ++row)
      std::ranges::copy(token.results[static_cast<std::size_t>(config.first_expert(config.rank)) + expert],
                        results.begin() + static_cast<std::ptrdiff_t>(row * width));
  EXPECT_TRUE(moe.combine({.rows = results.data()}, {.rows = x.data(), .accumulate = true}, routing));
  return x;
}

TEST(AddResults, one_process_gets_the_bits_that_the_ranks_get) {
  for (const int ranks : {1, 2, 3, 8}) {
    std::vector<std::string> names;
    std::vector<std::unique_ptr<Agent>> agents;
    std::deque<MoE> moes;
    for (int rank = 0; rank < ranks; ++rank) {
      names.push_back(fmt::format("decode-{}", rank));
      const AgentOptions options{.backends = {"shm"}, .store = fmt::format("memory:experts-{}", ranks)};
      agents.push_back(std::make_unique<Agent>(Agent::open(names.back(), options).value()));
      moes.push_back(MoE::open(*agents.back(), expert_config(sizes, {rank, ranks}).value()).value());
      ASSERT_TRUE(agents.back()->publish());
    }
    const auto run = [&](const auto& body) {
      std::vector<std::jthread> threads;
      for (MoE& moe : moes) threads.emplace_back([&] { body(moe); });
    };
    run([&](MoE& moe) { ASSERT_TRUE(moe.join(names, 30s)); });
    for (unsigned seed = 0; seed < 20; ++seed) {
      const Token token = random_token(seed);
      run([&](MoE& moe) {
        const std::vector<float> x = added_by(moe, token);
        if (moe.config().rank == 0) EXPECT_EQ(bits_of(x), bits_of(added_alone(token, moe.config()))) << ranks;
      });
    }
  }
}

TEST(ExpertConfig, each_rank_has_at_least_one_expert_and_the_first_ones_one_more) {
  const MoEConfig config = expert_config(sizes, {1, 3}).value();
  EXPECT_EQ(config.first_expert(1), 3);
  EXPECT_EQ(config.local_experts(), 3);
  EXPECT_EQ(config.local_experts(2), 2);
  std::vector<int> ranks;
  for (std::int64_t expert = 0; expert < 8; ++expert) ranks.push_back(rank_of_expert(config, expert));
  EXPECT_THAT(ranks, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
}

TEST(ExpertConfig, what_ranks_cannot_share_is_said) {
  EXPECT_EQ(expert_config(sizes, {0, 9}).error().message, "9 ranks cannot share 8 experts: choose 1 to 8");
  ModelSizes dense = sizes;
  dense.experts = dense.top_k = 0;
  EXPECT_EQ(expert_config(dense, {0, 2}).error().message,
            "the model has no experts that 2 ranks could share");
}

}  // namespace
}  // namespace headrace::cli::demo
