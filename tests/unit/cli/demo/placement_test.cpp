// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/placement.hpp"

#include <gmock/gmock.h>

namespace headrace::cli::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Placement, with_the_device_cpu_all_agents_run_on_the_cpu) {
  const auto placed = place("cpu", 8);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->prefill, "cpu");
  EXPECT_EQ(placed->of_decode(3), "cpu");
  EXPECT_EQ(placed->kind(), "cpu");
}

TEST(Placement, cuda_puts_prefill_and_decode_on_different_gpus_where_there_are_two) {
  const auto two = place("cuda", 2);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->prefill, "cuda:0");
  EXPECT_THAT(two->decode, ElementsAre("cuda:1"));
  EXPECT_EQ(two->kind(), "cuda");
  const auto four = place("cuda", 4);
  ASSERT_TRUE(four);
  EXPECT_THAT(four->decode, ElementsAre("cuda:1", "cuda:2", "cuda:3"));
  EXPECT_EQ(four->of_decode(4), "cuda:2");
}

TEST(Placement, a_single_or_named_gpu_runs_both_prefill_and_decode) {
  const auto only = place("cuda", 1);
  ASSERT_TRUE(only);
  EXPECT_EQ(only->prefill, "cuda:0");
  EXPECT_THAT(only->decode, ElementsAre("cuda:0"));
  const auto named = place("cuda:1", 4);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->prefill, "cuda:1");
  EXPECT_THAT(named->decode, ElementsAre("cuda:1"));
}

TEST(Placement, a_missing_gpu_is_refused_with_the_list_of_present_ones) {
  EXPECT_THAT(place("cuda", 0).error().message, HasSubstr("this machine has no GPU: leave the option out"));
  EXPECT_THAT(place("cuda:2", 2).error().message, HasSubstr("the GPUs of this machine are cuda:0 to cuda:1"));
  EXPECT_EQ(place("gpu", 2).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::cli::demo
