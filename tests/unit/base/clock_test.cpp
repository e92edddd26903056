// SPDX-License-Identifier: Apache-2.0
#include "base/clock.hpp"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using namespace std::chrono_literals;

TEST(Clock, TheSteadyClockIsMonotonicTime) {
  const std::uint64_t before = now_ns();
  const std::uint64_t between = SteadyClock().now_ns();
  EXPECT_LE(before, between);
  EXPECT_LE(between, now_ns());
}

TEST(Deadline, ADeadlineExpiresExactlyAtItsTime) {
  FakeClock clock;
  const Deadline deadline = Deadline::after(10ns, clock);
  clock.advance(9ns);
  EXPECT_FALSE(deadline.expired(clock));
  EXPECT_EQ(deadline.remaining_ns(clock), 1U);
  clock.advance(1ns);
  EXPECT_TRUE(deadline.expired(clock));
  EXPECT_EQ(deadline.remaining_ns(clock), 0U);
  clock.advance(1h);
  EXPECT_EQ(deadline.remaining_ns(clock), 0U);
}

TEST(Deadline, TheDeadlineNeverDoesNotExpire) {
  FakeClock clock;
  clock.advance(1000000h);
  EXPECT_FALSE(Deadline::never().expired(clock));
  EXPECT_EQ(Deadline::never().remaining_ns(clock), ~std::uint64_t{0});
  EXPECT_GT(Deadline::never().time_point(),
            std::chrono::steady_clock::now() + std::chrono::hours(24 * 365 * 50));
}

TEST(Deadline, ADeadlineAfterAnEnormousWaitDoesNotWrapAndANegativeWaitHasExpired) {
  EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).expired());
  EXPECT_TRUE(Deadline::after(-5s).expired());
}

TEST(Deadline, TheEarlierOfTwoDeadlinesIsTheSmallerTimePoint) {
  const Deadline soon = Deadline::at_ns(5);
  EXPECT_EQ(Deadline::earliest(soon, Deadline::never()), soon);
  EXPECT_EQ(Deadline::earliest(Deadline::at_ns(9), soon), soon);
  EXPECT_TRUE(Deadline::earliest(Deadline::never(), Deadline::never()).is_never());
}

TEST(Deadline, ADeadlineAgreesWithTheStandardSteadyClock) {
  const auto point = std::chrono::steady_clock::now() + 1h;
  EXPECT_EQ(Deadline::at(point).time_point(), point);
  EXPECT_GT(Deadline::at(point).remaining_ns(), 3'590'000'000'000U);
}

}  // namespace
}  // namespace headrace
