// SPDX-License-Identifier: Apache-2.0
// Rails that carry nothing, and peers that say nothing.
#include "rail/engine.hpp"
#include "unit/rail/two_engines.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using namespace test_engines;

const LinkOptions beating{.retry_after = 24h, .heartbeat = 1s, .silent_after = 4s};
const PostPlan beat_counted{Spread::free, 0, CountedAt{}};

TEST(RailHeartbeat, an_idle_rail_that_died_silently_is_lost_in_time_on_both_sides) {
  TwoEngines engines(2, 2, 1, beating);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 2; }));
  for (int i = 0; i < 1000; ++i) engines.step();
  engines.net.kill("a1", Told::never);
  const auto before_ns = engines.net.now_ns();
  ASSERT_TRUE(engines.until(
      [&] { return engines.sides[0].link->live_rails() == 1 && engines.sides[1].link->live_rails() == 1; }));
  EXPECT_LE(engines.net.now_ns() - before_ns, 5'000'000'000U);
  EXPECT_TRUE(engines.sides[0].why_lost.empty());
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(5, 4096, beat_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }, 2000));
}

TEST(RailHeartbeat, a_NIC_that_is_down_gives_its_rail_up_at_the_next_beat_and_the_last_one_waits) {
  TwoEngines engines(2, 2, 1, beating);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 2; }));
  engines.net.kill("a1", Told::by_health);
  const auto first_ns = engines.net.now_ns();
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 1; }));
  EXPECT_LE(engines.net.now_ns() - first_ns, 2'000'000'000U);
  ASSERT_TRUE(engines.until([&] {  // what that had to be said has been said
    return engines.sides[1].link->live_rails() == 1 && !engines.sides[0].link->sends();
  }));
  engines.net.kill("a0", Told::by_health);
  const auto last_ns = engines.net.now_ns();
  ASSERT_TRUE(engines.until([&] { return !engines.sides[0].why_lost.empty(); }));
  EXPECT_GE(engines.net.now_ns() - last_ns, 2'500'000'000U) << "as long as silence is allowed to last";
  EXPECT_NE(engines.sides[0].why_lost.find("a1 is dead"), std::string::npos) << engines.sides[0].why_lost;
}

TEST(RailHeartbeat, a_newcomer_ends_no_link_that_lives) {
  TwoEngines engines(2, 2, 1, beating);
  engines.connect();
  Link* const first = engines.sides[1].link;
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(engines.sides[0].engine->connect(engines.sides[1].engine->address()));
  for (int i = 0; i < 200; ++i) engines.step();
  EXPECT_EQ(first->live_rails(), 2U);
  EXPECT_TRUE(engines.sides[1].why_lost.empty());
}

TEST(RailHeartbeat, an_idle_link_lives_and_says_little) {
  TwoEngines engines(2, 2, 1, beating);
  engines.connect();
  std::size_t events = 0;
  const auto before_ns = engines.net.now_ns();
  while (engines.net.now_ns() - before_ns < 100'000'000'000U) {
    for (Side& side : engines.sides) events += side.engine->poll();
    if (!engines.net.run_next()) engines.net.advance(20ms);
  }
  // Each beat is an event on both sides.
  EXPECT_LE(events, 2U * 2 * 2 * 105);
  EXPECT_GE(events, 2U * 2 * 2 * 80);
  EXPECT_EQ(engines.sides[0].link->live_rails(), 2U);
  EXPECT_TRUE(
      engines.until([&] { return engines.sides[0].link->held() + engines.sides[1].link->held() == 0; }));
}

TEST(RailHeartbeat, an_engine_that_sleeps_until_it_says_keeps_its_link_and_wakes_seldom) {
  TwoEngines engines(1, 1, 1, beating);
  engines.connect();
  while (engines.net.run_next()) engines.step();
  int wakes = 0;
  const auto begin_ns = engines.net.now_ns();
  while (engines.net.now_ns() - begin_ns < 60'000'000'000U) {
    const auto next_ns = std::min(engines.sides[0].engine->next_ns(), engines.sides[1].engine->next_ns());
    ASSERT_GT(next_ns, engines.net.now_ns());
    engines.net.advance(std::chrono::nanoseconds(next_ns - engines.net.now_ns()));
    ++wakes;
    for (int i = 0; i < 10; ++i) engines.step();
  }
  EXPECT_EQ(engines.sides[0].link->live_rails(), 1U);
  EXPECT_LE(wakes, 2 * 60 * 2) << "at most twice for each beat of each side";
}

TEST(RailHeartbeat, a_peer_that_is_stopped_is_lost_in_time_and_all_ends) {
  for (const bool idle : {true, false}) {
    TwoEngines engines(2, 2, 1, beating);
    engines.connect();
    Writes writes(engines, 1 << 20);
    if (!idle) {
      ASSERT_TRUE(writes.post(20, 4096, beat_counted).ok());
      ASSERT_TRUE(engines.sides[0].link->send({nullptr, 0, 0, 1}).ok());
    }
    const auto before_ns = engines.net.now_ns();
    for (int i = 0; i < 5000 && engines.sides[0].why_lost.empty(); ++i) {
      engines.sides[0].engine->poll();
      if (!engines.net.run_next()) engines.net.advance(20ms);
    }
    EXPECT_NE(engines.sides[0].why_lost.find("nothing came over it"), std::string::npos)
        << engines.sides[0].why_lost;
    EXPECT_LE(engines.net.now_ns() - before_ns, 6'000'000'000U);
    EXPECT_TRUE(writes.all_ended());
    EXPECT_EQ(engines.sides[0].sends.size(), idle ? 0U : 1U);
    // It goes on, and finds that it was given up.
    ASSERT_TRUE(engines.until([&] { return !engines.sides[1].why_lost.empty(); }));
    engines.sides[1].link = nullptr;
    engines.connect();
    EXPECT_GT(engines.sides[0].link->live_rails(), 0U);
  }
}

TEST(RailHeartbeat, an_engine_that_was_stopped_itself_blames_nobody) {
  TwoEngines engines(2, 2, 1, beating);
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.sides[0].link->live_rails() == 2; }));
  Writes writes(engines, 1 << 20);
  ASSERT_TRUE(writes.post(100, 4096, beat_counted).ok());
  engines.sides[0].engine->poll();
  engines.net.advance(60s);  // both
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.sides[0].link->live_rails(), 2U);
  EXPECT_EQ(engines.sides[1].link->live_rails(), 2U);
}

TEST(RailHeartbeat, a_peer_that_was_started_again_at_its_addresses_is_a_new_link) {
  for (const bool silently : {true, false}) {
    TwoEngines engines(2, 2, 1, beating);
    engines.connect();
    const std::string address = engines.sides[1].engine->address();
    if (silently)
      for (const char* nic : {"b0", "b1"}) engines.net.kill(nic, Told::never);
    engines.sides[1].link = nullptr;
    engines.open_again(1, beating);
    ASSERT_EQ(engines.sides[1].engine->address(), address);
    ASSERT_TRUE(engines.until([&] { return !engines.sides[0].why_lost.empty(); }));
    EXPECT_EQ(engines.sides[0].link->lost_code(), Code::peer_lost);
    EXPECT_EQ(engines.sides[1].link, nullptr) << "the new engine knows nothing of the old link";
    engines.sides[0].engine->forget(*engines.sides[0].link);
    engines.connect();
    Writes writes(engines, 1 << 20);
    ASSERT_TRUE(writes.post(5, 4096, beat_counted).ok());
    ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  }
}

}  // namespace
}  // namespace headrace::rail
