// SPDX-License-Identifier: Apache-2.0
#include "moe/now_and_then.hpp"

#include <gtest/gtest.h>

namespace headrace::moe {
namespace {

TEST(NowAndThenTest, is_due_once_in_an_interval_and_not_at_the_first_look_of_a_wait) {
  NowAndThen each(10);
  EXPECT_FALSE(each.is_due(1000));
  EXPECT_FALSE(each.is_due(1009));
  EXPECT_TRUE(each.is_due(1010));
  EXPECT_FALSE(each.is_due(1019));
  EXPECT_TRUE(each.is_due(1025));
  EXPECT_FALSE(each.is_due(2000));  // another wait
  EXPECT_TRUE(each.is_due(2010));
}

TEST(NowAndThenTest, is_due_though_the_thread_runs_seldom) {
  NowAndThen each(10);
  int times = 0;
  for (std::uint64_t now = 1000; now < 2000; now += 100) times += each.is_due(now) ? 1 : 0;
  EXPECT_EQ(times, 5);
}

}  // namespace
}  // namespace headrace::moe
