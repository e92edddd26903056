// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/regions.hpp"

#include <gtest/gtest.h>

#include <array>

namespace headrace::tcp {
namespace {

TEST(Regions, a_range_is_found_only_if_all_of_it_lies_in_its_region) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  ASSERT_TRUE(regions.add({7, memory.data(), memory.size()}).ok());
  Regions::View view(regions);
  EXPECT_NE(view.find({7, 0, 0, 100}, Access::read).region, nullptr);
  EXPECT_NE(view.find({7, 0, 100, 0}, Access::read).region, nullptr);
  EXPECT_EQ(view.find({8, 0, 0, 1}, Access::read).code, Code::not_found);
  const auto beyond = view.find({7, 0, 90, 11}, Access::read);
  EXPECT_EQ(beyond.region, nullptr);
  EXPECT_EQ(beyond.code, Code::invalid_argument);
  EXPECT_EQ(beyond.good_bytes, 10U);
  EXPECT_EQ(view.find({7, 0, 101, 0}, Access::read).code, Code::invalid_argument);
  EXPECT_EQ(view.find({7, 0, 1, UINT64_MAX}, Access::read).region, nullptr) << "the sum overflows";
  EXPECT_EQ(view.find({7, 0, UINT64_MAX, 2}, Access::read).region, nullptr);
}

TEST(Regions, a_removed_region_is_not_found_and_its_id_is_free) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  const auto region = regions.add({7, memory.data(), memory.size()});
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(regions.add({7, memory.data(), 1}).code(), Code::invalid_argument);
  EXPECT_FALSE(regions.remove(*region).empty());
  EXPECT_EQ(Regions::View(regions).find({7, 0, 0, 1}, Access::read).region, nullptr);
  EXPECT_TRUE(regions.add({7, memory.data(), 1}).ok());
}

}  // namespace
}  // namespace headrace::tcp
