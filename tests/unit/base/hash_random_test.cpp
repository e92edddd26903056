// SPDX-License-Identifier: Apache-2.0
#include "base/hash.hpp"
#include "base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

namespace headrace {
namespace {

TEST(Hash, TheHashIsTheStandardXxh3SoItMayBeStoredAndSent) {
  // The published XXH3_64bits value of an empty input.
  EXPECT_EQ(hash64({}), 0x2d06800538d394c2ULL);
  const std::string_view text = "headrace";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(hash64(bytes), hash64(bytes));
  EXPECT_NE(hash64(bytes), hash64(bytes, 1));
  EXPECT_NE(hash64(bytes), hash64(bytes.first(7)));
}

TEST(Random, RandomNumbersDiffer) {
  std::set<std::uint64_t> drawn;
  for (int i = 0; i < 100; ++i) drawn.insert(random_u64());
  EXPECT_EQ(drawn.size(), 100U);
}

TEST(Random, FillRandomFillsAllBytes) {
  std::vector<std::byte> bytes(100'000);
  fill_random(bytes);
  // 64 zero bytes in a row have a chance of 2^-512 at each place.
  const auto zeros = std::search_n(bytes.begin(), bytes.end(), 64, std::byte{0});
  EXPECT_EQ(zeros, bytes.end());
}

}  // namespace
}  // namespace headrace
