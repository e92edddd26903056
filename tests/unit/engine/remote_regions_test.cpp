// SPDX-License-Identifier: Apache-2.0
#include "engine/remote_regions.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::engine {
namespace {

using Ids = std::vector<std::uint32_t>;

/// Regions with these ids. The length of each is its id; each has a name and one byte of data of a backend.
RemoteRegions regions_of(const Ids& ids) {
  RemoteRegions regions;
  std::vector<RemoteRegion> rows;
  for (const std::uint32_t id : ids) rows.push_back({.length = id});
  (void)regions.merge(ids, rows, true);
  for (const std::uint32_t id : ids) {
    regions.set_name(id, "r" + std::to_string(id), "");
    regions.set_public(id, 1, "x");
  }
  return regions;
}

void expect_just(const RemoteRegions& regions, const Ids& left, const Ids& gone) {
  EXPECT_EQ(regions.ids(), left);
  ASSERT_EQ(regions.rows().size(), left.size());
  for (const std::uint32_t id : left) {
    ASSERT_NE(regions.find(id), nullptr);
    EXPECT_EQ(regions.find(id)->length, id);
    EXPECT_EQ(regions.find_name("r" + std::to_string(id)), id);
    EXPECT_EQ(regions.public_data(id, 1), "x");
  }
  for (const std::uint32_t id : gone) {
    EXPECT_EQ(regions.find(id), nullptr);
    EXPECT_EQ(regions.find_name("r" + std::to_string(id)), std::nullopt);
    EXPECT_EQ(regions.public_data(id, 1), "");
  }
}

TEST(RemoteRegions, regions_erased_by_ranges_lose_their_names_and_data) {
  RemoteRegions regions = regions_of({1, 2, 5, 6, 7, 9, UINT32_MAX});
  const std::vector<IdRange> gone{{2, 1}, {4, 3}, {8, 1}, {UINT32_MAX, 1}};
  regions.erase(gone);
  expect_just(regions, {1, 7, 9}, {2, 5, 6, UINT32_MAX});
}

TEST(RemoteRegions, keep_only_removes_all_other_regions) {
  RemoteRegions regions = regions_of({1, 2, 5, 7, 9});
  regions.keep_only(Ids{0, 2, 3, 7, 100}, 101);
  expect_just(regions, {2, 7}, {1, 5, 9});
  regions.keep_only({}, 7);
  expect_just(regions, {7}, {2});
}

TEST(RemoteRegions, later_metadata_of_a_region_stays_when_earlier_comes) {
  RemoteRegions regions;
  (void)regions.merge(Ids{1, 2}, {{.length = 10, .version = 7}, {.length = 20, .version = 7}}, true);
  const auto left =
      regions.merge(Ids{1, 2}, {{.length = 11, .version = 6}, {.length = 21, .version = 8}}, true);
  EXPECT_EQ(left.older, Ids{1});
  EXPECT_EQ(regions.find(1)->length, 10U);
  EXPECT_EQ(regions.find(2)->length, 21U);
}

TEST(RemoteRegions, their_bytes_are_counted) {
  RemoteRegions regions = regions_of({1, 2});
  const std::size_t before = regions.bytes();
  regions.set_name(1, "r1", std::string(1000, 'n'));
  EXPECT_EQ(regions.bytes(), before + 1000);
  regions.erase(std::vector<IdRange>{{1, 2}});
  EXPECT_EQ(regions.bytes(), 0U);
}

}  // namespace
}  // namespace headrace::engine
