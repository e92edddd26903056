// SPDX-License-Identifier: Apache-2.0
#include "memory/region_table.hpp"

#include "support/heap_in_use.hpp"
#include "support/median_time.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

namespace headrace {
namespace {

using Table = RegionTable<std::string>;

TEST(region_table, ids_count_from_one_and_are_never_used_twice) {
  Table table;
  EXPECT_EQ(table.add(100, 10, "a"), 1U);
  EXPECT_EQ(table.add(200, 10, "b"), 2U);
  EXPECT_TRUE(table.remove(2));
  EXPECT_EQ(table.add(200, 10, "c"), 3U);
  ASSERT_NE(table.find(3), nullptr);
  EXPECT_EQ(*table.find(3), "c");
  EXPECT_EQ(table.size(), 2U);
}

TEST(region_table, a_missing_id_or_address_is_not_found) {
  Table table;
  table.add(100, 10, "a");
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(2), nullptr);
  EXPECT_EQ(table.find(UINT32_MAX), nullptr);
  EXPECT_FALSE(table.remove(0));
  EXPECT_FALSE(table.remove(2));
  EXPECT_TRUE(table.remove(1));
  EXPECT_FALSE(table.remove(1));
  EXPECT_EQ(table.find(1), nullptr);
  table.index();
  EXPECT_FALSE(table.find_address(100, 1));
}

TEST(region_table, a_region_that_is_withdrawn_is_gone_for_updates_and_found_until_it_is_removed) {
  Table table;
  const std::uint32_t id = table.add(100, 10, "a");
  table.withdraw(id);
  table.withdraw(id);
  EXPECT_EQ(table.version(), 2U) << "once";
  EXPECT_NE(table.find(id), nullptr);
  EXPECT_EQ(table.changes_since(1).gone, (std::vector<RegionIdRange>{{id, 1}}));
  EXPECT_TRUE(table.remove(id));
  EXPECT_EQ(table.version(), 2U);
  EXPECT_EQ(table.changes_since(1).gone, (std::vector<RegionIdRange>{{id, 1}}));
}

TEST(region_table, a_region_that_is_put_back_is_new_for_updates_from_every_version) {
  Table table;
  const std::uint32_t first = table.add(100, 10, "a"), second = table.add(200, 10, "b");
  for (int i = 0; i < 2; ++i) {
    table.withdraw(first);
    table.put_back(first);
  }
  EXPECT_EQ(table.version(), 6U);
  for (const std::uint64_t since : {2U, 3U, 4U, 5U}) {
    EXPECT_EQ(table.changes_since(since).added, std::vector{first}) << since;
    EXPECT_TRUE(table.changes_since(since).gone.empty());
  }
  EXPECT_TRUE(table.changes_since(6).added.empty());
  EXPECT_EQ(table.changes_since(1).added, (std::vector{first, second}));
  EXPECT_TRUE(table.remove(first));
  EXPECT_TRUE(table.changes_since(2).added.empty());
}

TEST(region_table, an_address_is_found_in_the_newest_region_that_holds_the_whole_range) {
  Table table;
  table.add(1000, 1000, "wide");
  table.add(1200, 100, "inner");
  table.add(1200, 50, "shorter");
  table.index();
  const auto name_at = [&](std::uint64_t address, std::uint64_t length) {
    const auto found = table.find_address(address, length);
    return found ? *found->record + "+" + std::to_string(found->offset) : "nowhere";
  };
  EXPECT_EQ(name_at(1200, 50), "shorter+0");
  EXPECT_EQ(name_at(1200, 51), "inner+0");
  EXPECT_EQ(name_at(1299, 1), "inner+99");
  EXPECT_EQ(name_at(1299, 2), "wide+299");
  EXPECT_EQ(name_at(1999, 1), "wide+999");
  EXPECT_EQ(name_at(1999, 2), "nowhere");
  EXPECT_EQ(name_at(999, 1), "nowhere");
  EXPECT_EQ(name_at(1500, UINT64_MAX), "nowhere") << "a range that wraps around lies in no region";
}

TEST(region_table, a_region_without_an_address_is_found_by_its_id_only) {
  Table table;
  table.index();
  const std::uint32_t id = table.add(0, 100, "file");
  EXPECT_TRUE(table.indexed()) << "a region without an address leaves the index valid";
  EXPECT_NE(table.find(id), nullptr);
  EXPECT_FALSE(table.find_address(0, 10));
  EXPECT_FALSE(table.find_address(50, 10));
  EXPECT_TRUE(table.remove(id));
  EXPECT_TRUE(table.indexed());
}

TEST(region_table, lookups_agree_with_a_plain_search_through_random_changes) {
  std::mt19937_64 random(3);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  struct Plain {
    std::uint64_t address, length;
  };
  Table table;
  std::map<std::uint32_t, Plain> plain;
  for (int round = 0; round < 400; ++round) {
    for (std::uint64_t changes = below(12); changes > 0; --changes) {
      if (!plain.empty() && below(3) == 0) {
        const auto victim = std::next(plain.begin(), static_cast<std::ptrdiff_t>(below(plain.size())));
        ASSERT_TRUE(table.remove(victim->first));
        plain.erase(victim);
      } else {
        const Plain region{1 + below(2000), 1 + below(below(4) == 0 ? 1500 : 60)};
        plain.emplace(table.add(region.address, region.length, "r"), region);
      }
    }
    table.index();
    ASSERT_EQ(table.size(), plain.size());
    for (int look = 0; look < 40; ++look) {
      const std::uint64_t address = below(4000), length = 1 + below(80);
      std::uint32_t best = 0;
      for (const auto& [id, region] : plain)
        if (address >= region.address && address + length <= region.address + region.length) best = id;
      const auto found = table.find_address(address, length);
      ASSERT_EQ(found ? found->id : 0, best) << address << " + " << length << " in round " << round;
      if (found) {
        ASSERT_EQ(found->offset, address - plain.at(best).address);
      }
    }
  }
}

TEST(region_table, the_version_grows_by_one_with_each_change) {
  Table table;
  EXPECT_EQ(table.version(), 0U);
  table.add(1, 1, "a");
  table.add(0, 1, "b");
  EXPECT_EQ(table.version(), 2U);
  table.remove(1);
  EXPECT_EQ(table.version(), 3U);
  table.remove(1);
  EXPECT_EQ(table.version(), 3U) << "a failed remove is no change";
}

TEST(region_table, the_changes_since_any_version_lead_to_the_present_regions) {
  std::mt19937_64 random(5);
  Table table;
  std::vector<std::map<std::uint32_t, bool>> at_version{{}};
  std::map<std::uint32_t, bool> now;
  for (int i = 0; i < 300; ++i) {
    if (!now.empty() && random() % 3 == 0) {
      const auto victim = std::next(now.begin(), static_cast<std::ptrdiff_t>(random() % now.size()));
      table.remove(victim->first);
      now.erase(victim);
    } else {
      now.emplace(table.add(random() % 2, 1, "r"), true);
    }
    at_version.push_back(now);
  }
  for (std::size_t version = 0; version < at_version.size(); ++version) {
    auto reader = at_version[version];
    const auto changes = table.changes_since(version);
    ASSERT_TRUE(std::is_sorted(changes.added.begin(), changes.added.end()));
    for (const std::uint32_t id : changes.added) reader.emplace(id, true);
    std::uint64_t last_end = 0;
    for (const RegionIdRange& range : changes.gone) {
      ASSERT_GT(range.first, last_end) << "the ranges must ascend and not touch";
      last_end = std::uint64_t{range.first} + range.count;
      for (std::uint32_t i = 0; i < range.count; ++i) reader.erase(range.first + i);
    }
    ASSERT_EQ(reader, now) << "from version " << version;
  }
  EXPECT_TRUE(table.changes_since(table.version()).added.empty());
  EXPECT_TRUE(table.changes_since(table.version()).gone.empty());
}

/// A table, and at each version the regions that exports listed.
class Listed {
 public:
  std::uint32_t some(const std::set<std::uint32_t>& ids) {
    return *std::next(ids.begin(), static_cast<std::ptrdiff_t>(random() % ids.size()));
  }
  void change() {
    const auto kind = random() % 8;
    if (kind < 2 || listed.empty()) {
      listed.insert(table.add(random() % 2, 1, "r"));
    } else if (kind < 4) {
      const std::uint32_t id = some(listed);
      listed.erase(id);
      withdrawn.insert(id);
      table.withdraw(id);
    } else if (kind == 4) {
      table.renew(some(listed), random() % (table.version() + 1));
    } else if (kind == 5) {
      const std::uint32_t id = some(listed);
      listed.erase(id);
      table.remove(id);
    } else if (!withdrawn.empty()) {
      const std::uint32_t id = some(withdrawn);
      withdrawn.erase(id);
      if (kind == 6) {
        table.remove(id);
      } else {
        table.put_back(id);
        listed.insert(id);
      }
    }
    if (random() % 16 == 0) at_version[table.version()] = listed;
  }
  void expect_update(std::uint64_t since) const {
    auto reader = at_version.at(since);
    const auto changes = table.changes_since(since);
    std::set<std::uint32_t> added;
    for (const std::uint32_t id : changes.added) {
      if (!listed.contains(id)) continue;
      ASSERT_TRUE(added.insert(id).second) << "added twice";
    }
    reader.insert(added.begin(), added.end());
    for (const RegionIdRange& range : changes.gone)
      for (std::uint32_t id = range.first; id < range.first + range.count; ++id) {
        ASSERT_FALSE(added.contains(id)) << "added and gone";
        reader.erase(id);
      }
    ASSERT_EQ(reader, listed);
  }

  std::mt19937_64 random{17};
  Table table;
  std::set<std::uint32_t> listed, withdrawn;
  std::map<std::uint64_t, std::set<std::uint32_t>> at_version{{0, {}}};
};

TEST(region_table, changes_lead_to_the_regions_that_are_listed_whatever_was_withdrawn_and_put_back) {
  Listed listed;
  for (int i = 0; i < 9000; ++i) {
    listed.change();
    if (i % 1500 != 1499) continue;
    for (const auto& [version, ids] : listed.at_version) {
      if (listed.random() % 8 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(listed.expect_update(version)) << "from version " << version;
    }
  }
}

/// The time to withdraw one of `count` regions that were all made new, put it back, and remove it.
double change_ns(std::uint32_t count) {
  Table table;
  for (std::uint32_t i = 0; i < count; ++i) table.add(i + 1, 1, "r");
  for (std::uint32_t id = 1; id <= count; ++id) {
    table.withdraw(id);
    table.renew(id, table.version());
  }
  return test::median_ns(101, [&](std::size_t i) {
    const auto id = static_cast<std::uint32_t>(1 + i * (count / 101));
    table.put_back(id);
    table.withdraw(id);
    EXPECT_TRUE(table.remove(id));
  });
}

TEST(region_table, a_change_takes_the_same_time_however_many_regions_were_withdrawn_or_renewed) {
  const double few = change_ns(1000), many = change_ns(100'000);
  EXPECT_LE(many, 8 * few) << few << " ns of 1,000 regions, " << many << " ns of 100,000";
}

TEST(region_table, a_region_that_is_put_back_again_and_again_leaves_the_memory_flat) {
  Table table;
  const std::uint32_t id = table.add(100, 10, "stays");
  const auto withdraw_and_put_back = [&](int times) {
    for (int i = 0; i < times; ++i) {
      table.withdraw(id);
      table.put_back(id);
    }
  };
  withdraw_and_put_back(10'000);
  const std::size_t before = test::heap_in_use();
  withdraw_and_put_back(100'000);
  EXPECT_LE(test::heap_in_use(), before + before / 20);
  const std::uint64_t version = table.version();
  withdraw_and_put_back(1);
  EXPECT_EQ(table.changes_since(version).added, std::vector{id});
  EXPECT_TRUE(table.changes_since(version).gone.empty());
}

TEST(region_table, a_region_for_each_request_leaves_the_memory_flat) {
  Table table;
  for (int i = 0; i < 100; ++i) table.add(1000U * static_cast<unsigned>(i), 10, "stays");
  const auto register_and_deregister = [&](int pairs) {
    for (int i = 0; i < pairs; ++i) {
      const std::uint32_t id = table.add(500, 10, "goes");
      if (i % 1000 == 0) table.index();
      ASSERT_TRUE(table.remove(id));
    }
  };
  register_and_deregister(10'000);
  const std::size_t before = test::heap_in_use();
  register_and_deregister(100'000);
  EXPECT_LE(test::heap_in_use(), before + before / 20);
  EXPECT_EQ(table.size(), 100U);
  EXPECT_EQ(table.find(110'100), nullptr);
  ASSERT_NE(table.find(100), nullptr);
  table.index();
  EXPECT_EQ(table.find_address(99'005, 1)->id, 100U);
}

TEST(region_table, the_changes_since_a_forgotten_version_lead_to_the_present_regions) {
  std::mt19937_64 random(7);
  Table table;
  std::map<std::uint64_t, std::set<std::uint32_t>> at_version{{0, {}}};
  std::set<std::uint32_t> now;
  for (int i = 0; i < 20'000; ++i) {
    if (now.size() > 40 || (!now.empty() && random() % 2 == 0)) {
      const auto victim = std::next(now.begin(), static_cast<std::ptrdiff_t>(random() % now.size()));
      table.remove(*victim);
      now.erase(victim);
    } else {
      now.insert(table.add(random() % 2, 1, "r"));
    }
    if (i % 500 == 0) at_version[table.version()] = now;
  }
  for (auto& [version, reader] : at_version) {
    const auto changes = table.changes_since(version);
    reader.insert(changes.added.begin(), changes.added.end());
    for (const RegionIdRange& range : changes.gone)
      for (std::uint32_t i = 0; i < range.count; ++i) reader.erase(range.first + i);
    ASSERT_EQ(reader, now) << "from version " << version;
    EXPECT_LE(changes.gone.size(), std::max<std::size_t>(now.size() + 1, 2200));
  }
}

TEST(region_table, consecutive_removed_ids_are_one_range) {
  Table table;
  for (int i = 0; i < 10; ++i) table.add(1, 1, "r");
  const std::uint64_t before = table.version();
  for (const std::uint32_t id : {5U, 3U, 4U, 9U}) table.remove(id);
  const auto gone = table.changes_since(before).gone;
  ASSERT_EQ(gone.size(), 2U);
  EXPECT_EQ(gone[0], (RegionIdRange{3, 3}));
  EXPECT_EQ(gone[1], (RegionIdRange{9, 1}));
}

TEST(region_table, for_each_visits_the_regions_in_the_order_of_ids) {
  Table table;
  table.add(1, 1, "a");
  table.add(1, 1, "b");
  table.add(1, 1, "c");
  table.remove(2);
  std::string seen;
  table.for_each([&](std::uint32_t id, const std::string& record) { seen += std::to_string(id) + record; });
  EXPECT_EQ(seen, "1a3c");
}

}  // namespace
}  // namespace headrace
