// SPDX-License-Identifier: Apache-2.0
#include "memory/page_list.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <random>

namespace headrace {
namespace {

struct Row {
  std::uint32_t region;
  std::uint64_t offset, length;
};

PageColumns columns_of(const std::vector<Row>& rows) {
  PageColumnsBuilder builder(rows.size());
  for (const Row& row : rows) builder.add(row.region, row.offset, row.length);
  return std::move(builder).finish();
}

/// The page i of these columns, by the rule of headrace_side_v1.
Row page_of(const PageColumns& columns, std::uint64_t i) {
  return {columns.region_ids[columns.region_of.empty() ? 0 : columns.region_of[i]],
          columns.offsets.empty() ? columns.base_offset + i * columns.stride_bytes : columns.offsets[i],
          columns.lengths.empty() ? columns.page_bytes : columns.lengths[i]};
}

TEST(page_columns, columns_of_pages_at_one_stride_keep_no_array) {
  std::vector<Row> rows;
  for (std::uint64_t i = 0; i < 100; ++i) rows.push_back({7, 1000 + i * 8192, 4096});
  const PageColumns columns = columns_of(rows);
  EXPECT_TRUE(columns.offsets.empty() && columns.lengths.empty() && columns.region_of.empty());
  EXPECT_EQ(columns.base_offset, 1000U);
  EXPECT_EQ(columns.stride_bytes, 8192U);
  EXPECT_EQ(columns.page_bytes, 4096U);
  EXPECT_EQ(columns.bytes, 409'600U);
  EXPECT_EQ(columns.region_ids, std::vector<std::uint32_t>{7});
}

TEST(page_columns, columns_of_pages_at_a_negative_stride_keep_no_array) {
  std::vector<Row> rows;
  for (std::uint64_t i = 0; i < 100; ++i) rows.push_back({7, 1'000'000 - i * 4096, 4096});
  const PageColumns columns = columns_of(rows);
  EXPECT_TRUE(columns.offsets.empty());
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(page_of(columns, i).offset, rows[i].offset);
}

TEST(page_columns, columns_of_one_page_are_uniform) {
  const PageColumns columns = columns_of({{3, 17, 5}});
  EXPECT_TRUE(columns.offsets.empty() && columns.lengths.empty());
  EXPECT_EQ(page_of(columns, 0).offset, 17U);
}

TEST(page_columns, columns_of_several_regions_keep_their_offsets_even_at_one_stride) {
  const PageColumns columns = columns_of({{5, 0, 10}, {9, 10, 10}, {5, 20, 10}});
  EXPECT_EQ(columns.region_of, (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(columns.region_ids, (std::vector<std::uint32_t>{5, 9}));
  EXPECT_EQ(columns.offsets, (std::vector<std::uint64_t>{0, 10, 20}));
  EXPECT_TRUE(columns.lengths.empty());
}

TEST(page_columns, columns_hold_the_pages_they_were_made_of) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<Row> rows(1 + random() % 40);
    const std::uint64_t regions = 1 + random() % 3;
    const bool one_length = random() % 2 != 0, affine = random() % 2 != 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = {static_cast<std::uint32_t>(10 + random() % regions), affine ? 5 + i * 64 : random() % 1000,
                 one_length ? 64 : 1 + random() % 9};
      bytes += rows[i].length;
    }
    const PageColumns columns = columns_of(rows);
    ASSERT_EQ(columns.count, rows.size());
    ASSERT_EQ(columns.bytes, bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row page = page_of(columns, i);
      ASSERT_TRUE(page.region == rows[i].region && page.offset == rows[i].offset &&
                  page.length == rows[i].length)
          << "round " << round << ", page " << i;
    }
  }
}

TEST(indices, indices_are_copied_to_32_bits) {
  const std::vector<std::int64_t> wide{3, 0, 99, 99};
  const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
  std::vector<std::uint32_t> copy(4), copy_of_narrow(4);
  ASSERT_TRUE(copy_indices(wide, 100, "local", copy));
  ASSERT_TRUE(copy_indices(narrow, 100, "local", copy_of_narrow));
  EXPECT_EQ(copy, (std::vector<std::uint32_t>{3, 0, 99, 99}));
  EXPECT_EQ(copy, copy_of_narrow);
  EXPECT_TRUE(copy_indices(std::span<const std::int64_t>(), 0, "local", {}));
}

TEST(indices, the_first_index_out_of_range_is_named_with_its_position) {
  for (const std::int64_t bad :
       {std::int64_t{100}, std::int64_t{-1}, INT64_MIN, INT64_MAX, std::int64_t{1} << 32}) {
    std::vector<std::int64_t> wide(1000, 5);
    wide[613] = bad;
    wide[700] = -7;
    std::vector<std::uint32_t> room(wide.size());
    const auto copy = copy_indices(wide, 100, "remote", room);
    ASSERT_EQ(copy.code(), Code::invalid_argument) << bad;
    EXPECT_EQ(copy.error().page, 613U);
    EXPECT_NE(copy.error().message.find("remote index 613 is " + std::to_string(bad)), std::string::npos)
        << copy.error().message;
    EXPECT_NE(copy.error().message.find("100 pages"), std::string::npos);
  }
  std::vector<std::uint32_t> room(3);
  EXPECT_EQ(copy_indices(std::vector<std::uint32_t>{1, 2, 3}, 3, "local", room).error().page, 2U);
  const auto negative =
      copy_indices(std::vector<std::int32_t>{1, -2, 3}, std::uint64_t{1} << 40, "local", room);
  ASSERT_EQ(negative.code(), Code::invalid_argument);
  EXPECT_NE(negative.error().message.find("local index 1 is -2"), std::string::npos)
      << negative.error().message;
}

TEST(indices, indices_into_very_long_lists_must_fit_in_32_bits) {
  const std::vector<std::int64_t> wide{(std::int64_t{1} << 32) - 1, std::int64_t{1} << 32};
  std::vector<std::uint32_t> room(2);
  EXPECT_TRUE(copy_indices(std::span(wide).first(1), std::uint64_t{1} << 40, "local", room));
  EXPECT_EQ(copy_indices(wide, std::uint64_t{1} << 40, "local", room).error().page, 1U);
}

/// Columns and indices of one side, kept together for a PageSelection.
struct Side {
  PageColumns columns;
  std::vector<std::uint32_t> indices;
  [[nodiscard]] PageSelection selection() const { return {columns.view(indices)}; }
};

TEST(lengths, lengths_of_two_sides_are_compared_through_their_indices) {
  const Side one{columns_of({{1, 0, 4}, {1, 10, 8}, {1, 30, 2}}), {2, 0, 1}};
  const Side same{columns_of({{1, 0, 2}, {1, 50, 4}, {1, 30, 8}}), {}};
  const auto equal = compare_lengths(one.selection(), same.selection(), 3);
  EXPECT_FALSE(equal.first);
  EXPECT_EQ(equal.second, 14U);
  const Side other{columns_of({{1, 0, 2}, {1, 50, 4}, {1, 30, 9}}), {}};
  EXPECT_EQ(compare_lengths(one.selection(), other.selection(), 3).first, 2U);
  const Side uniform{columns_of({{1, 0, 2}, {1, 50, 2}, {1, 30, 2}}), {}};
  EXPECT_EQ(compare_lengths(one.selection(), uniform.selection(), 3).first, 1U);
  const Side wider{columns_of({{1, 0, 3}}), {0, 0, 0}};
  EXPECT_EQ(compare_lengths(uniform.selection(), wider.selection(), 3).first, 0U);
  EXPECT_EQ(compare_lengths(wider.selection(), wider.selection(), 3).second, 9U);
}

TEST(overlaps, an_overlap_of_random_pages_is_found_exactly_if_there_is_one) {
  std::mt19937_64 random(8);
  int with = 0, without = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Row> rows(2 + random() % 10);
    for (Row& row : rows)
      row = {static_cast<std::uint32_t>(1 + random() % 2), random() % 200, 1 + random() % 12};
    Side side{columns_of(rows), {}};
    if (random() % 2 != 0) {
      side.indices.resize(rows.size());
      std::iota(side.indices.begin(), side.indices.end(), 0U);
      std::shuffle(side.indices.begin(), side.indices.end(), random);
      if (random() % 5 == 0) side.indices[0] = side.indices[1];  // the same page twice
    }
    const PageSelection pages = side.selection();
    const auto overlap = [&](std::uint64_t a, std::uint64_t b) {
      return pages.region(a) == pages.region(b) && pages.offset(a) < pages.offset(b) + pages.length(b) &&
             pages.offset(b) < pages.offset(a) + pages.length(a);
    };
    bool any = false;
    for (std::uint64_t a = 0; a < rows.size(); ++a)
      for (std::uint64_t b = a + 1; b < rows.size(); ++b) any = any || overlap(a, b);
    const auto found = find_overlap(pages, rows.size());
    ASSERT_EQ(found.has_value(), any) << "round " << round;
    if (found) {
      ASSERT_LT(found->first, found->second);
      ASSERT_TRUE(overlap(found->first, found->second));
    }
    ++(any ? with : without);
  }
  EXPECT_GT(with, 100);
  EXPECT_GT(without, 100);
}

TEST(overlaps, pages_that_touch_do_not_overlap) {
  const Side side{columns_of({{1, 0, 10}, {1, 10, 10}, {2, 5, 10}}), {}};
  EXPECT_FALSE(find_overlap(side.selection(), 3));
}

/// Pages of region 7 by columns of numbers at these addresses and strides.
RegionPages by_columns(const void* offsets, std::int64_t offset_stride, const void* lengths,
                       std::int64_t length_stride, std::uint64_t count, std::uint64_t origin = 0) {
  return {RegionId{7}, {offsets, offset_stride}, {lengths, length_stride}, count, origin};
}

/// The same pages, added to the builder one by one.
PageColumns one_by_one(const RegionPages& pages) {
  PageColumnsBuilder builder(pages.count);
  for (std::uint64_t i = 0; i < pages.count; ++i) {
    const Page page = page_at(pages, i);
    builder.add(7, page.offset_bytes, page.length_bytes);
  }
  return std::move(builder).finish();
}

void expect_same(const std::optional<PageColumns>& found, const PageColumns& expected) {
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->count, expected.count);
  EXPECT_EQ(found->bytes, expected.bytes);
  EXPECT_EQ(found->region_of, expected.region_of);
  EXPECT_EQ(found->offsets, expected.offsets);
  EXPECT_EQ(found->lengths, expected.lengths);
  EXPECT_EQ(found->base_offset, expected.base_offset);
  EXPECT_EQ(found->stride_bytes, expected.stride_bytes);
  EXPECT_EQ(found->page_bytes, expected.page_bytes);
  EXPECT_EQ(found->region_ids, expected.region_ids);
}

TEST(region_pages, pages_by_columns_become_the_same_columns_as_pages_one_by_one) {
  constexpr std::uint64_t origin = 1'000'000;
  std::mt19937_64 random(1);
  for (const std::uint64_t count : {1, 2, 3, 1023, 1024, 1025, 5000}) {
    for (const bool in_order : {true, false}) {
      for (const bool one_length : {true, false}) {
        // A table with rows (another number, offset, length), and the same numbers as two arrays.
        std::vector<std::uint64_t> table, offsets, lengths;
        for (std::uint64_t i = 0; i < count; ++i) {
          offsets.push_back(origin + 4096 * (in_order ? i : random() % 10'000));
          lengths.push_back(one_length ? 4096 : 1 + random() % 4096);
          table.insert(table.end(), {random(), offsets[i], lengths[i]});
        }
        const RegionPages rows = by_columns(&table[1], 24, &table[2], 24, count, origin);
        const RegionPages arrays = by_columns(offsets.data(), 8, lengths.data(), 8, count, origin);
        const RegionPages backwards =
            by_columns(&table[3 * count - 2], -24, &table[3 * count - 1], -24, count, origin);
        for (const RegionPages& pages : {rows, arrays, backwards})
          expect_same(columns_of(pages, 50'000'000), one_by_one(pages));
        EXPECT_EQ(page_at(backwards, 0).offset_bytes, offsets.back() - origin);
      }
    }
  }
}

TEST(region_pages, columns_may_have_one_length_for_all_pages_and_unaligned_numbers) {
  std::vector<std::byte> room(8 * 100 + 1);
  std::vector<std::uint64_t> offsets(100);
  for (std::uint64_t i = 0; i < 100; ++i) offsets[i] = i * i;
  std::memcpy(room.data() + 1, offsets.data(), 800);
  const std::uint64_t length = 10;
  const auto columns = columns_of(by_columns(room.data() + 1, 8, &length, 0, 100), 99 * 99 + 10);
  ASSERT_TRUE(columns.has_value());
  EXPECT_EQ(columns->offsets, offsets);
  EXPECT_TRUE(columns->lengths.empty());
  EXPECT_EQ(columns->page_bytes, 10U);
  EXPECT_EQ(columns->bytes, 1000U);
}

TEST(region_pages, regular_pages_by_columns_keep_no_array) {
  std::vector<std::uint64_t> offsets(3000);
  for (std::uint64_t i = 0; i < 3000; ++i) offsets[i] = 500 + 64 * i;
  const std::uint64_t length = 64;
  const auto columns = columns_of(by_columns(offsets.data(), 8, &length, 0, 3000, 500), 64 * 3000);
  ASSERT_TRUE(columns.has_value());
  EXPECT_TRUE(columns->offsets.empty() && columns->lengths.empty() && columns->region_of.empty());
  EXPECT_EQ(columns->base_offset, 0U);
  EXPECT_EQ(columns->stride_bytes, 64U);
}

TEST(region_pages, a_page_outside_the_region_is_refused_and_the_first_one_is_named) {
  constexpr std::uint64_t count = 3000, region = 64 * count;
  for (const bool in_order : {true, false}) {
    for (const bool one_length : {true, false}) {
      std::vector<std::uint64_t> offsets(count), lengths(count, 64);
      for (std::uint64_t i = 0; i < count; ++i) offsets[i] = 1000 + 64 * (in_order ? i : (i * 7) % count);
      if (!one_length) lengths[2] = 8;
      const RegionPages pages = by_columns(offsets.data(), 8, lengths.data(), 8, count, 1000);
      ASSERT_TRUE(columns_of(pages, region).has_value());
      ASSERT_EQ(first_misfit(pages, region), std::nullopt);
      for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1024}, count - 1}) {
        const std::uint64_t offset = offsets[at], length = lengths[at];
        const auto refused = [&](const char* what) {
          SCOPED_TRACE(what);
          EXPECT_EQ(columns_of(pages, region), std::nullopt);
          EXPECT_EQ(first_misfit(pages, region), at);
          offsets[at] = offset;
          lengths[at] = length;
        };
        offsets[at] = 999;  // before the region: the difference wraps around
        refused("before");
        offsets[at] = 1000 + region - lengths[at] + 1;
        refused("past the end");
        lengths[at] = 0;
        refused("empty");
        lengths[at] = UINT64_MAX;
        refused("too long");
        ASSERT_TRUE(columns_of(pages, region).has_value());
      }
    }
  }
  const std::uint64_t offset = 0, length = 0;
  EXPECT_EQ(first_misfit(by_columns(&offset, 0, &length, 0, 5), 100), 0U);
  EXPECT_EQ(columns_of(by_columns(&offset, 0, &length, 0, 5), 100), std::nullopt);
}

TEST(region_pages, pages_of_a_region_without_a_known_end_may_lie_anywhere) {
  const std::vector<std::uint64_t> offsets{1ULL << 40, 0, 77};
  const std::uint64_t length = 10;
  EXPECT_TRUE(columns_of(by_columns(offsets.data(), 8, &length, 0, 3), 0).has_value());
}

TEST(overlaps, an_overlap_of_views_is_found_exactly_if_two_elements_share_a_byte) {
  std::mt19937_64 random(9);
  int with = 0, without = 0, within = 0;
  for (int round = 0; round < 3000; ++round) {
    PageView view;
    view.item_bytes = 1 + random() % 3;
    for (std::uint64_t d = 1 + random() % 3; d > 0; --d) {
      view.shape.push_back(static_cast<std::int64_t>(1 + random() % 3));
      view.strides_bytes.push_back(static_cast<std::int64_t>(1 + random() % 20));
    }
    const auto shape = PageShape::make(view);
    if (!shape) continue;  // the view has more bytes than fit
    std::vector<Row> rows(1 + random() % 4);
    for (Row& row : rows)
      row = {static_cast<std::uint32_t>(1 + random() % 2), random() % 150, shape->bytes()};
    const Side side{columns_of(rows), {}};
    PageSelection pages = side.selection();
    pages.shape = &*shape;
    // The reference: every byte of every element of every page.
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> owner;
    std::set<std::pair<std::uint64_t, std::uint64_t>> overlapping;
    for (std::uint64_t page = 0; page < rows.size(); ++page) {
      std::vector<std::uint64_t> places{pages.offset(page)};
      for (std::size_t d = 0; d < view.shape.size(); ++d) {
        std::vector<std::uint64_t> more;
        for (const std::uint64_t place : places)
          for (std::int64_t i = 0; i < view.shape[d]; ++i)
            more.push_back(place + static_cast<std::uint64_t>(i * view.strides_bytes[d]));
        places = more;
      }
      for (const std::uint64_t place : places)
        for (std::uint64_t b = 0; b < view.item_bytes; ++b)
          if (const auto [at, fresh] = owner.try_emplace({pages.region(page), place + b}, page); !fresh)
            overlapping.emplace(at->second, page);
    }
    const auto found = find_overlap(pages, rows.size());
    ASSERT_EQ(found.has_value(), !overlapping.empty()) << "round " << round;
    if (found && found->first == found->second) ++within;
    ++(found ? with : without);
  }
  EXPECT_GT(with, 100);
  EXPECT_GT(without, 100);
  EXPECT_GT(within, 10);
}

}  // namespace
}  // namespace headrace
