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
  regions.merge(ids, rows);
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
  regions.keep_only(Ids{0, 2, 3, 7, 100});
  expect_just(regions, {2, 7}, {1, 5, 9});
  regions.keep_only({});
  expect_just(regions, {}, {2, 7});
}

}  // namespace
}  // namespace headrace::engine
