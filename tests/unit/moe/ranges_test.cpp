// SPDX-License-Identifier: Apache-2.0
// Calls of a MoE as ranges of a profiler.
#include "support/profiler_tool.hpp"

#include <headrace/agent.hpp>
#include <headrace/moe.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

namespace headrace::moe {
namespace {

TEST(MoERanges, each_call_is_a_range) {
  Agent agent = Agent::open("ranges", {.backends = {"shm"}}).value();
  MoEConfig config;
  config.experts = 1, config.top_k = 1, config.hidden = 16, config.max_tokens = 1;
  config.dtype = config.combine_dtype = DType::float32;
  auto opened = MoE::open(agent, config);
  ASSERT_TRUE(opened) << opened.error().message;
  MoE& moe = *opened;
  const std::string names[] = {agent.name()};
  ASSERT_TRUE(moe.join(names, std::chrono::seconds(10)));
  MoERouting routing = moe.new_routing().value();
  const std::vector<float> row(16, 2.0F);
  std::vector<float> got(16), sum(16);
  const std::int64_t expert = 0;
  MoETokens tokens;
  tokens.count = 1, tokens.rows = row.data(), tokens.experts = &expert;
  MoERows out;
  out.rows = got.data();

  nvtx::attach(test::attach_tool);
  test::Timeline::one().take();
  ASSERT_TRUE(moe.dispatch(tokens, out, routing));
  ASSERT_TRUE(moe.combine_send({.rows = got.data()}, routing));
  ASSERT_TRUE(moe.combine_receive({.rows = sum.data()}, routing));
  EXPECT_FALSE(moe.combine({.rows = got.data()}, {}, routing));  // there is no memory for the sums
  const auto seen = test::Timeline::one().take();
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_EQ(seen[0].name, "headrace: moe dispatch");
  EXPECT_EQ(seen[1].name, "headrace: moe combine_send");
  EXPECT_EQ(seen[2].name, "headrace: moe combine_receive");
  EXPECT_EQ(seen[3].name, "headrace: moe combine");
  for (const test::SeenRange& range : seen) EXPECT_EQ(range.ends, 1) << range.name;
  EXPECT_EQ(sum, row);
}

}  // namespace
}  // namespace headrace::moe
