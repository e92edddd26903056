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

}  // namespace
}  // namespace headrace::transport
