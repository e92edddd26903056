// SPDX-License-Identifier: Apache-2.0
#include "engine/id_ranges.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <unordered_map>

namespace headrace::engine {
namespace {

using Ranges = std::vector<IdRange>;

TEST(IdRanges, ranges_contain_their_ids_and_no_others) {
  const Ranges ranges{{2, 1}, {4, 3}, {UINT32_MAX, 1}};
  std::vector<std::uint32_t> inside;
  for (const std::uint32_t id : {0U, 1U, 2U, 3U, 4U, 6U, 7U, UINT32_MAX - 1, UINT32_MAX})
    if (contains(ranges, id)) inside.push_back(id);
  EXPECT_EQ(inside, (std::vector{2U, 4U, 6U, UINT32_MAX}));
  EXPECT_FALSE(contains({}, 1));
}

TEST(IdRanges, in_order_they_rise_and_no_id_is_in_two) {
  EXPECT_EQ(in_order({{5, 1}, {1, 3}}), (Ranges{{1, 3}, {5, 1}}));
  EXPECT_EQ(in_order({{1, 100}, {2, 1}, {50, 60}}), (Ranges{{1, 100}, {101, 9}}));
  EXPECT_EQ(in_order({{7, 2}, {7, 2}, {9, 0}}), (Ranges{{7, 2}}));
  EXPECT_EQ(in_order({{UINT32_MAX, 7}, {UINT32_MAX, 9}}), (Ranges{{UINT32_MAX, 1}}))
      << "there is no later id";
}

TEST(IdRanges, ids_are_taken_out_of_a_map_whether_they_or_the_map_are_more) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::unordered_map<std::uint32_t, int> map;
    std::multiset<int> left, gone;
    for (std::uint32_t id = 1; id < 60; ++id)
      if (random() % 2 == 0) map[id] = static_cast<int>(1000 + id);
    Ranges ranges;
    for (auto count = random() % 4; count > 0; --count)
      ranges.push_back(
          {static_cast<std::uint32_t>(random() % 60), static_cast<std::uint32_t>(random() % 40)});
    ranges = in_order(std::move(ranges));
    for (const auto& [id, value] : map) (contains(ranges, id) ? gone : left).insert(value);
    const auto taken = take_out(map, ranges);
    EXPECT_EQ(std::multiset<int>(taken.begin(), taken.end()), gone);
    std::multiset<int> kept;
    for (const auto& [id, value] : map) kept.insert(value);
    EXPECT_EQ(kept, left);
  }
}

}  // namespace
}  // namespace headrace::engine
