// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/watch_rules.hpp"

#include <gtest/gtest.h>

namespace headrace::cli::demo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(Restarts, PausesBetweenRestartsGrowUntilTheLimitOfRestarts) {
  Restarts restarts;
  Clock::time_point now{1h};
  Clock::duration last{};
  for (std::size_t i = 0; i < Restarts::most; ++i) {
    restarts.started(now);
    const auto at = restarts.died(now);
    ASSERT_TRUE(at.has_value());
    EXPECT_GT(*at - now, last);
    last = *at - now;
    now = *at;
  }
  restarts.started(now);
  EXPECT_FALSE(restarts.died(now).has_value());
}

TEST(Restarts, ALongRunResetsTheCountOfDeaths) {
  Restarts restarts;
  Clock::time_point now{1h};
  for (std::size_t i = 0; i < 3 * Restarts::most; ++i) {
    restarts.started(now);
    now += Restarts::long_life;
    EXPECT_TRUE(restarts.died(now).has_value());
    EXPECT_EQ(restarts.deaths(), 1u);
  }
}

TEST(Silence, SilenceIsCountedUntilAMessageArrivesAndNotWhileTheWatcherSleeps) {
  Silence silence;
  const Clock::time_point now{1h};
  silence.pass(now, now + 20ms);
  silence.pass(now + 20ms, now + 50ms);
  EXPECT_EQ(silence.lasts(), 50ms);
  silence.pass(now, now + 1h);
  EXPECT_EQ(silence.lasts(), 50ms + Silence::longest_step);
  silence.heard();
  EXPECT_EQ(silence.lasts(), 0ms);
}

}  // namespace
}  // namespace headrace::cli::demo
