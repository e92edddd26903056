// SPDX-License-Identifier: Apache-2.0
#include "gpu/table_pool.hpp"

#include "gpu_test.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace headrace::gpu {
namespace {

class TablePoolTest : public GpuTest {
 protected:
  /// Takes `count` tables and holds them all.
  std::vector<TablePool::Table> take(std::size_t count, std::size_t bytes) {
    std::vector<TablePool::Table> tables;
    for (std::size_t i = 0; i < count; ++i) {
      auto table = pool->take(bytes);
      EXPECT_TRUE(table);
      tables.push_back(std::move(*table));
    }
    return tables;
  }

  std::shared_ptr<TablePool> pool = std::make_shared<TablePool>(open());
};

TEST_F(TablePoolTest, small_tables_have_a_cache_line_each_and_share_a_few_memory_pages) {
  constexpr std::size_t line = 64, page = 4096, heads = 3000;
  std::set<std::uint64_t> lines, pages;
  for (const auto& head : take(heads, line)) {
    EXPECT_EQ(head.mapped() % line, 0u);
    EXPECT_EQ(head.device() % line, 0u);
    EXPECT_TRUE(fake.reachable(head.device(), line) && fake.reachable(head.mapped(), line));
    lines.insert(head.mapped() / line);
    pages.insert(head.mapped() / page);
  }
  EXPECT_EQ(lines.size(), heads);
  EXPECT_LE(pages.size(), heads * line / page + 16);
}

TEST_F(TablePoolTest, tables_of_all_sizes_do_not_overlap_and_are_reused) {
  for (const std::size_t bytes : {1, 64, 65, 4096, 4097, 3 << 20}) {
    std::set<std::byte*> places;
    {
      const auto tables = take(2, bytes);
      const auto [low, high] = std::minmax({tables[0].host(), tables[1].host()});
      EXPECT_GE(static_cast<std::size_t>(high - low), bytes);
      for (const auto& table : tables)
        EXPECT_TRUE(fake.reachable(table.device(), bytes) && fake.reachable(table.mapped(), bytes));
      places = {low, high};
    }
    EXPECT_TRUE(places.contains(take(1, bytes)[0].host())) << "a table that was given back is reused";
  }
}

TEST_F(TablePoolTest, a_table_larger_than_all_memory_is_refused) {
  EXPECT_EQ(pool->take(SIZE_MAX).code(), Code::exhausted);
}

}  // namespace
}  // namespace headrace::gpu
