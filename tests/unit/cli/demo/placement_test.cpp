// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/placement.hpp"

#include <gmock/gmock.h>

namespace headrace::cli::demo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Placement, without_a_gpu_in_the_word_all_run_on_the_cpu) {
  const auto placed = place("cpu", 8);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->prefill, "cpu");
  EXPECT_EQ(placed->of_decode(3), "cpu");
  EXPECT_EQ(placed->kind(), "cpu");
}

TEST(Placement, cuda_parts_prefill_from_decode_where_there_are_two_gpus) {
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

TEST(Placement, one_gpu_or_one_that_is_named_has_all) {
  const auto only = place("cuda", 1);
  ASSERT_TRUE(only);
  EXPECT_EQ(only->prefill, "cuda:0");
  EXPECT_THAT(only->decode, ElementsAre("cuda:0"));
  const auto named = place("cuda:1", 4);
  ASSERT_TRUE(named);
  EXPECT_EQ(named->prefill, "cuda:1");
  EXPECT_THAT(named->decode, ElementsAre("cuda:1"));
}

TEST(Placement, a_gpu_that_is_not_there_is_refused_with_those_that_are) {
  EXPECT_THAT(place("cuda", 0).error().message, HasSubstr("this machine has no GPU: leave the option out"));
  EXPECT_THAT(place("cuda:2", 2).error().message, HasSubstr("the GPUs of this machine are cuda:0 to cuda:1"));
  EXPECT_EQ(place("gpu", 2).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::cli::demo
