// SPDX-License-Identifier: Apache-2.0
#include "rail/arrivals.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace headrace::rail {
namespace {

Announcement announcement(std::uint64_t number, std::uint32_t chunks) {
  return {number, chunks, 7, static_cast<std::uint32_t>(number), 1};
}

std::vector<std::uint64_t> counted(Arrivals& arrivals) {
  std::vector<std::uint64_t> numbers;
  while (const auto next = arrivals.next()) numbers.push_back(next->number);
  return numbers;
}

using Numbers = std::vector<std::uint64_t>;

TEST(RailArrivals, a_number_is_counted_when_it_is_announced_and_all_marks_have_come) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.marked(mark_of(1, 1)));
  ASSERT_TRUE(arrivals.announced(announcement(1, 3)));
  ASSERT_TRUE(arrivals.marked(mark_of(1, 0)));
  EXPECT_EQ(counted(arrivals), Numbers{});
  ASSERT_TRUE(arrivals.marked(mark_of(1, 2)));
  EXPECT_EQ(counted(arrivals), Numbers{1});
}

TEST(RailArrivals, marks_and_announcements_that_come_again_count_nothing) {
  Arrivals arrivals;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(arrivals.marked(mark_of(1, 0)));
    ASSERT_TRUE(arrivals.announced(announcement(1, 2)));
  }
  EXPECT_EQ(counted(arrivals), Numbers{}) << "one chunk came thrice, the other never";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(arrivals.marked(mark_of(1, 1)));
  ASSERT_TRUE(arrivals.announced(announcement(1, 2)));
  ASSERT_TRUE(arrivals.announced(announcement(1, 0)));
  EXPECT_EQ(counted(arrivals), Numbers{1});
}

TEST(RailArrivals, an_old_mark_is_not_taken_for_a_new_number) {
  Arrivals arrivals;
  for (std::uint64_t number = 1; number <= 3 * number_window; ++number) {
    ASSERT_TRUE(arrivals.announced(announcement(number, 1)));
    if (number > number_window) {
      ASSERT_TRUE(arrivals.marked(mark_of(number - number_window, 0)));
    }
    ASSERT_EQ(counted(arrivals), Numbers{});
    ASSERT_TRUE(arrivals.marked(mark_of(number, 0)));
    ASSERT_EQ(counted(arrivals), Numbers{number});
  }
  EXPECT_EQ(arrivals.open(), 0U);
}

TEST(RailArrivals, any_order_counts_each_number_once) {
  std::mt19937 random(3);
  Arrivals arrivals;
  std::vector<Announcement> announcements;
  std::vector<std::pair<bool, std::uint32_t>> all;
  for (std::uint32_t number = 1; number <= number_window; ++number) {
    const std::uint32_t chunks = random() % 65;
    announcements.push_back(announcement(number, chunks));
    for (int twice = 0; twice < 2; ++twice) {
      all.emplace_back(true, number);
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) all.emplace_back(false, mark_of(number, chunk));
    }
  }
  std::shuffle(all.begin(), all.end(), random);
  Numbers numbers;
  for (const auto& [announced, what] : all) {
    ASSERT_TRUE(announced ? arrivals.announced(announcements[what - 1]) : arrivals.marked(what));
    for (const auto number : counted(arrivals)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers.size(), number_window);
  EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
}

TEST(RailArrivals, no_marks_count_while_a_rail_is_known_to_be_down_here_alone) {
  Arrivals arrivals;
  arrivals.hold();
  ASSERT_TRUE(arrivals.announced(announcement(1, 1)));
  ASSERT_TRUE(arrivals.announced(announcement(2, 1)));
  ASSERT_TRUE(arrivals.marked(mark_of(1, 0)));
  ASSERT_TRUE(arrivals.marked(mark_of(2, 0)));
  EXPECT_EQ(counted(arrivals), Numbers{});
  arrivals.release();
  arrivals.settle_below(2);
  arrivals.look_again();
  EXPECT_EQ(counted(arrivals), Numbers{2}) << "number 1 may have used the rail";
  ASSERT_TRUE(arrivals.announced(announcement(1, 0)));
  EXPECT_EQ(counted(arrivals), Numbers{1});
}

TEST(RailArrivals, what_is_counted_is_told) {
  Arrivals arrivals;
  for (const std::uint64_t number : {1, 2, 4, 70, 1001})
    ASSERT_TRUE(arrivals.announced(announcement(number, 0)));
  const auto numbers = arrivals.counted();
  EXPECT_EQ(numbers.below, 3U);
  for (const std::uint64_t number : {1, 2, 4, 70, 1001}) EXPECT_TRUE(numbers.has(number)) << number;
  for (const std::uint64_t number : {3, 5, 69, 71, 1000, 1002, 5000})
    EXPECT_FALSE(numbers.has(number)) << number;
}

TEST(RailArrivals, a_peer_that_lies_is_found_out) {
  Arrivals arrivals;
  EXPECT_EQ(arrivals.announced(announcement(1 + number_window, 0)).code(), Code::corrupt);
  ASSERT_TRUE(arrivals.announced(announcement(1, 2)));
  EXPECT_EQ(arrivals.marked(mark_of(1, 2)).code(), Code::corrupt);
  ASSERT_TRUE(arrivals.marked(mark_of(2, 5)));
  EXPECT_EQ(arrivals.announced(announcement(2, 5)).code(), Code::corrupt);
  EXPECT_LE(arrivals.open(), number_window);
}

}  // namespace
}  // namespace headrace::rail
