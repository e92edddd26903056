// SPDX-License-Identifier: Apache-2.0
#include "base/affinity.hpp"

#include <gtest/gtest.h>

#include <sched.h>

namespace headrace {
namespace {

TEST(Affinity, is_that_of_the_thread_and_can_be_restricted) {
  cpu_set_t system;
  ASSERT_EQ(::sched_getaffinity(0, sizeof system, &system), 0);
  const auto all = read_affinity().value();
  ASSERT_EQ(all.size(), static_cast<std::size_t>(CPU_COUNT(&system)));
  EXPECT_EQ(usable_cores(), all.size());
  ASSERT_TRUE(set_affinity(std::span(all).last(1)));
  EXPECT_EQ(read_affinity().value(), std::vector<unsigned>{all.back()});
  EXPECT_EQ(usable_cores(), 1U);
  ASSERT_TRUE(set_affinity(all));
  EXPECT_EQ(read_affinity().value(), all);
}

TEST(Affinity, of_no_cpu_is_refused) { EXPECT_EQ(set_affinity({}).code(), Code::invalid_argument); }

}  // namespace
}  // namespace headrace
