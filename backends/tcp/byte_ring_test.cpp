// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/byte_ring.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace headrace::tcp {
namespace {

TEST(ByteRing, gives_each_piece_one_stretch_and_begins_again_when_the_first_are_given_back) {
  ByteRing ring(1024);
  EXPECT_EQ(ring.take(512), 0U);
  EXPECT_EQ(ring.take(300), 512U);
  EXPECT_EQ(ring.take(300), std::nullopt) << "not across the end";
  ring.release_oldest();
  EXPECT_EQ(ring.take(513), std::nullopt);
  EXPECT_EQ(ring.take(512), 0U);
  EXPECT_EQ(ring.take(1), std::nullopt) << "the oldest begins where this would";
  ring.release_newest();
  EXPECT_EQ(ring.take(1), 0U);
  ring.release_oldest();
  ring.release_oldest();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.take(1025), std::nullopt);
  EXPECT_EQ(ring.take(1024), 0U);
}

TEST(ByteRing, no_two_pieces_share_a_byte_and_there_is_always_room_for_half_of_it_in_the_end) {
  constexpr std::uint64_t capacity = 64 * 1024;
  std::mt19937 random{7};
  ByteRing ring(capacity);
  std::deque<std::pair<std::uint64_t, std::uint64_t>> held;
  for (int round = 0; round < 20'000; ++round) {
    const std::uint64_t bytes = 1 + random() % (capacity / 2);
    auto begin = ring.take(bytes);
    while (!begin) {
      ASSERT_FALSE(held.empty()) << "an empty ring must have room for " << bytes;
      held.pop_front();
      ring.release_oldest();
      begin = ring.take(bytes);
    }
    ASSERT_EQ(*begin % ByteRing::alignment, 0U);
    ASSERT_LE(*begin + bytes, capacity);
    for (const auto& [first, end] : held) ASSERT_TRUE(*begin >= end || *begin + bytes <= first) << round;
    held.emplace_back(*begin, *begin + bytes);
    if (random() % 8 == 0) {
      held.pop_back();
      ring.release_newest();
    }
  }
}

}  // namespace
}  // namespace headrace::tcp
