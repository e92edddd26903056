// SPDX-License-Identifier: Apache-2.0
#include "engine/remote_regions.hpp"
#include "unit/engine/ids_of.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
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
  EXPECT_EQ(ids_of(regions), left);
  ASSERT_EQ(regions.size(), left.size());
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

/// The same as RemoteRegions, in the plainest way.
class PlainRegions {
 public:
  RemoteRegions::Left merge(const Ids& ids, const std::vector<RemoteRegion>& rows, bool may_be_new) {
    RemoteRegions::Left left;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto known = by_id.find(ids[i]);
      if (known == by_id.end() && !may_be_new)
        left.gone.push_back(ids[i]);
      else if (known != by_id.end() && known->second.version > rows[i].version)
        left.older.push_back(ids[i]);
      else
        by_id[ids[i]] = rows[i];
    }
    return left;
  }
  void erase(std::span<const IdRange> gone) {
    std::erase_if(by_id, [&](const auto& entry) { return contains(gone, entry.first); });
  }
  void keep_only(const Ids& ids, std::uint64_t end) {
    std::erase_if(by_id, [&](const auto& entry) {
      return entry.first < end && std::ranges::find(ids, entry.first) == ids.end();
    });
  }
  std::map<std::uint32_t, RemoteRegion> by_id;
};

void expect_same(const RemoteRegions& regions, const PlainRegions& plain, std::uint32_t highest) {
  ASSERT_EQ(regions.size(), plain.by_id.size());
  for (std::uint32_t id = 0; id <= highest; ++id) {
    const RemoteRegion* const found = regions.find(id);
    const auto expected = plain.by_id.find(id);
    ASSERT_EQ(found != nullptr, expected != plain.by_id.end()) << id;
    if (found == nullptr) continue;
    ASSERT_EQ(found->length, expected->second.length) << id;
    ASSERT_EQ(found->version, expected->second.version) << id;
  }
  const Ids ids = ids_of(regions);
  ASSERT_TRUE(std::ranges::equal(ids, plain.by_id, {}, {}, [](const auto& entry) { return entry.first; }));
  ASSERT_TRUE(plain.by_id.empty() ? regions.bytes() == 0 : regions.bytes() >= 36 * ids.size());
  ASSERT_LE(regions.bytes(), std::size_t{2} * 36 * ids.size()) << "rows of regions that have gone";
}

/// Regions among `first` to `last`, about one of `one_of`.
Ids some_ids(std::mt19937& random, std::uint32_t first, std::uint32_t last, std::uint32_t one_of) {
  Ids ids;
  for (std::uint32_t id = first; id <= last; ++id)
    if (random() % one_of == 0) ids.push_back(id);
  return ids;
}

TEST(RemoteRegions, any_order_of_changes_gives_what_a_plain_map_gives) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    RemoteRegions regions;
    PlainRegions plain;
    std::uint32_t highest = 0;
    for (std::uint64_t change = 1; change <= 150; ++change) {
      const std::uint32_t first = static_cast<std::uint32_t>(random() % (highest + 1)) + 1;
      const std::uint32_t last = first + static_cast<std::uint32_t>(random() % 30);
      const std::uint32_t one_of = random() % 2 == 0 ? 1 : static_cast<std::uint32_t>(random() % 8) + 1;
      switch (random() % 8) {
        case 0: {
          const Ids kept = some_ids(random, 1, highest, one_of);
          regions.keep_only(kept, last);
          plain.keep_only(kept, last);
          break;
        }
        case 1:
        case 2:
        case 3: {
          const auto gone = to_ranges(some_ids(random, first, last, one_of));
          regions.erase(gone);
          plain.erase(gone);
          break;
        }
        default: {
          highest = std::max(highest, last);
          const Ids ids = some_ids(random, first, last, one_of);
          std::vector<RemoteRegion> rows;
          for (const std::uint32_t id : ids)
            rows.push_back({.length = id * 1000 + change, .version = random() % 50});
          const bool may_be_new = random() % 4 != 0;
          const auto left = regions.merge(ids, rows, may_be_new);
          const auto expected = plain.merge(ids, rows, may_be_new);
          ASSERT_EQ(left.gone, expected.gone);
          ASSERT_EQ(left.older, expected.older);
        }
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(regions, plain, highest + 1)) << "seed " << seed << ", " << change;
    }
  }
}

TEST(RemoteRegions, a_region_that_comes_back_has_neither_its_former_name_nor_its_data) {
  RemoteRegions regions = regions_of({1, 2, 3, 4});
  regions.erase(std::vector<IdRange>{{2, 1}});
  (void)regions.merge({2}, {{.length = 20}}, true);
  ASSERT_NE(regions.find(2), nullptr);
  EXPECT_EQ(regions.find(2)->length, 20U);
  EXPECT_EQ(regions.find_name("r2"), std::nullopt);
  EXPECT_EQ(regions.name_and_note(2), nullptr);
  EXPECT_EQ(regions.public_data(2, 1), "");
}

TEST(RemoteRegions, a_change_of_one_region_moves_few_rows_of_others) {
  std::mt19937 random(3);
  RemoteRegions regions;
  Ids ids(600);
  std::iota(ids.begin(), ids.end(), 1U);
  (void)regions.merge(ids, std::vector<RemoteRegion>(ids.size()), true);
  constexpr int changes = 300;
  std::size_t moved = 0;
  for (int change = 0; change < changes; ++change) {
    std::map<std::uint32_t, const RemoteRegion*> before;
    for (const std::uint32_t id : ids) before[id] = regions.find(id);
    if (change % 3 == 0) {
      ids.push_back(ids.back() + 1);
      (void)regions.merge({ids.back()}, {{}}, true);
    } else if (change % 3 == 1) {
      (void)regions.merge({ids[random() % ids.size()]}, {{.version = 1}}, true);
    } else {
      const auto victim = ids.begin() + static_cast<std::ptrdiff_t>(random() % (ids.size() - 1));
      regions.erase(std::vector<IdRange>{{*victim, 1}});
      before.erase(*victim);
      ids.erase(victim);
    }
    for (const auto& [id, row] : before) moved += regions.find(id) != row ? 1 : 0;
  }
  EXPECT_LE(moved, std::size_t{10} * changes) << "rows that moved in " << changes << " changes";
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
