// SPDX-License-Identifier: Apache-2.0
#include "transport/region_table.hpp"
#include "support/sleeping_thread.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>

namespace headrace::transport {
namespace {

using Regions = RegionTable<Region>;

TEST(RegionTable, a_range_is_found_only_if_all_of_it_lies_in_its_region) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  ASSERT_TRUE(regions.add({7, memory.data(), memory.size()}).ok());
  Regions::View view(regions);
  EXPECT_NE(view.find({7, 0, 100}, Access::read).region, nullptr);
  EXPECT_NE(view.find({7, 100, 0}, Access::read).region, nullptr);
  EXPECT_EQ(view.find({8, 0, 1}, Access::read).code, Code::not_found);
  const auto beyond = view.find({7, 90, 11}, Access::read);
  EXPECT_EQ(beyond.region, nullptr);
  EXPECT_EQ(beyond.code, Code::invalid_argument);
  EXPECT_EQ(beyond.good_bytes, 10U);
  EXPECT_EQ(view.find({7, 101, 0}, Access::read).code, Code::invalid_argument);
  EXPECT_EQ(view.find({7, 1, UINT64_MAX}, Access::read).region, nullptr) << "the sum overflows";
  EXPECT_EQ(view.find({7, UINT64_MAX, 2}, Access::read).region, nullptr);
}

TEST(RegionTable, a_removed_region_is_not_found_and_its_id_is_free) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  const auto region = regions.add({7, memory.data(), memory.size()});
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(regions.add({7, memory.data(), 1}).code(), Code::invalid_argument);
  EXPECT_FALSE(regions.remove(*region).empty());
  EXPECT_EQ(Regions::View(regions).find({7, 0, 1}, Access::read).region, nullptr);
  EXPECT_TRUE(regions.add({7, memory.data(), 1}).ok());
}

TEST(RegionTable, a_read_only_region_is_not_written) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  ASSERT_TRUE(regions.add({7, memory.data(), memory.size(), false}).ok());
  Regions::View view(regions);
  EXPECT_NE(view.find({7, 0, 100}, Access::read).region, nullptr);
  EXPECT_EQ(view.find({7, 0, 1}, Access::write).code, Code::not_supported);
}

TEST(RegionTable, removing_waits_for_the_frame_whose_ranges_are_looked_up) {
  std::array<std::byte, 100> memory{};
  Regions regions;
  const auto region = regions.add({7, memory.data(), memory.size()});
  ASSERT_TRUE(region.ok());
  std::optional<Regions::View> view(std::in_place, regions);
  test::WaitingCall remover([&] { (void)regions.remove(*region); });
  EXPECT_TRUE(remover.waits());
  EXPECT_NE(view->find({7, 0, 1}, Access::read).region, nullptr);
  view.reset();
  remover.join();
}

}  // namespace
}  // namespace headrace::transport
