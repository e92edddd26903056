// SPDX-License-Identifier: Apache-2.0
#include "memory/rising_ids.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

using Ids = std::vector<std::uint32_t>;

std::size_t find_in(const Ids& ids, std::uint32_t id, int& looks) {
  return find_rising(id, ids.size(), [&](std::size_t place) {
    ++looks;
    return ids.at(place);
  });
}

TEST(rising_ids, a_plain_search_finds_the_same) {
  std::mt19937 random(23);
  for (int round = 0; round < 500; ++round) {
    Ids ids;
    const std::uint32_t base = round % 2 == 0 ? 0 : UINT32_MAX - 100;
    const auto one_of = random() % 5 + 1, length = random() % 101;
    for (std::uint32_t i = 0; i < length; ++i)
      if (random() % one_of == 0) ids.push_back(base + i);
    int looks = 0;
    for (std::uint32_t i = 0; i <= 100; ++i) {
      const auto at = static_cast<std::size_t>(std::ranges::find(ids, base + i) - ids.begin());
      ASSERT_EQ(find_in(ids, base + i, looks), at) << base + i;
    }
    ASSERT_EQ(find_in(ids, base ^ 0x80000000U, looks), ids.size());
  }
}

TEST(rising_ids, no_search_is_needed_before_the_first_gap_and_behind_the_last) {
  Ids ids;
  for (std::uint32_t id = 10; id < 20'000; ++id)
    if (id < 5'000 || id > 9'000) ids.push_back(id);
  for (const std::uint32_t id : {10U, 4'999U, 9'001U, 19'999U}) {
    int looks = 0;
    ASSERT_LT(find_in(ids, id, looks), ids.size());
    EXPECT_LE(looks, 8) << id;
  }
}

}  // namespace
}  // namespace headrace
