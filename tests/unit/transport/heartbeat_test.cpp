// SPDX-License-Identifier: Apache-2.0
#include "transport/heartbeat.hpp"

#include <gtest/gtest.h>

namespace headrace::transport {
namespace {

using namespace std::chrono_literals;
using Beat = Heartbeat::Beat;

/// A heartbeat with a clock that the test moves.
struct BeatingHeart {
  Beat after(std::chrono::nanoseconds time) {
    now_ns += static_cast<std::uint64_t>(time.count());
    return heart.beat(now_ns);
  }

  Heartbeat heart{100ms, 350ms};
  std::uint64_t now_ns = 1'000'000'000'000;
};

TEST(Heartbeat, a_connection_that_hears_and_speaks_needs_no_ping) {
  BeatingHeart peer;
  for (int i = 0; i < 10; ++i) {
    peer.heart.heard();
    peer.heart.spoke();
    EXPECT_EQ(peer.after(99ms), Beat::rest);
  }
}

TEST(Heartbeat, a_silent_peer_is_pinged_once_an_interval_and_given_up_at_the_timeout) {
  BeatingHeart peer;
  EXPECT_EQ(peer.after(0ms), Beat::rest) << "it counts as heard in the beginning";
  EXPECT_EQ(peer.after(99ms), Beat::rest);
  EXPECT_EQ(peer.after(1ms), Beat::ping);
  EXPECT_EQ(peer.after(50ms), Beat::rest);
  EXPECT_EQ(peer.after(50ms), Beat::ping);
  EXPECT_EQ(peer.after(149ms), Beat::ping);
  EXPECT_EQ(peer.after(1ms), Beat::lost);
  EXPECT_EQ(peer.heart.silence(), 350ms);
}

TEST(Heartbeat, a_peer_that_hears_nothing_of_us_is_pinged_though_it_speaks) {
  BeatingHeart peer;
  EXPECT_EQ(peer.after(0ms), Beat::rest);
  peer.heart.heard();
  EXPECT_EQ(peer.after(100ms), Beat::ping);
}

TEST(Heartbeat, a_peer_that_answers_in_time_is_kept) {
  BeatingHeart peer;
  EXPECT_EQ(peer.after(0ms), Beat::rest);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(peer.after(349ms), Beat::ping);
    peer.heart.heard();
    EXPECT_EQ(peer.after(0ms), Beat::rest);
    EXPECT_EQ(peer.heart.silence(), 0ms);
  }
}

TEST(Heartbeat, asks_twice_an_interval_but_neither_too_often_nor_too_seldom) {
  EXPECT_EQ(Heartbeat(100ms, 1s).next_ns(7), 50'000'007U);
  EXPECT_EQ(Heartbeat(1us, 1s).next_ns(7), 1'000'007U);
  EXPECT_EQ(Heartbeat(1h, 2h).next_ns(7), 250'000'007U);
}

TEST(Heartbeat, asks_no_more_often_than_needed_while_nobody_else_uses_the_connection) {
  constexpr std::uint64_t begin = 1'000'000'000'000, ms = 1'000'000;
  Heartbeat heart(1600ms, 5s);
  EXPECT_EQ(heart.beat(begin), Beat::rest);
  EXPECT_EQ(heart.due_ns(), 0U) << "others may use it";
  EXPECT_EQ(heart.beat(begin + 250 * ms), Beat::rest);
  EXPECT_EQ(heart.next_ns(begin + 250 * ms), begin + 1600 * ms) << "when the ping is due";
  heart.heard_at(begin + 1010 * ms);
  EXPECT_EQ(heart.due_ns(), begin + 1600 * ms) << "the peer has heard nothing of us since the beginning";
  heart.spoke_at(begin + 1020 * ms);
  EXPECT_EQ(heart.due_ns(), begin + 2700 * ms) << "on the next common time after 2610 ms";
  EXPECT_EQ(heart.beat(begin + 2700 * ms), Beat::ping);
  EXPECT_EQ(heart.beat(begin + 4300 * ms), Beat::ping);
  EXPECT_EQ(heart.beat(begin + 5900 * ms), Beat::ping);
  EXPECT_EQ(heart.next_ns(begin + 5900 * ms), begin + 6100 * ms) << "when it is lost: 6010 ms";
  EXPECT_EQ(heart.beat(begin + 6010 * ms), Beat::lost);
}

TEST(Heartbeat, an_older_time_changes_nothing) {
  Heartbeat heart(100ms, 1s);
  EXPECT_EQ(heart.beat(1'000'000'000), Beat::rest);
  heart.heard_at(5);
  heart.spoke_at(5);
  EXPECT_EQ(heart.beat(1'050'000'000), Beat::rest);
  EXPECT_EQ(heart.silence(), 50ms);
}

}  // namespace
}  // namespace headrace::transport
