// SPDX-License-Identifier: Apache-2.0
#include "memory/page_cursor.hpp"

#include "support/page_side.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace {
namespace {

using test::PageSide;

void* region(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

PageSide uniform(std::uint64_t base, std::uint64_t stride, std::uint64_t page_bytes,
                 std::uintptr_t which = 1) {
  return test::uniform_side(region(which), base, stride, page_bytes);
}

/// A request and its two sides. They point into the PageSides of the constructor.
struct TwoSides {
  headrace_side_v1 local, remote;
  headrace_prepare_v1 request{};

  TwoSides(const PageSide& l, const PageSide& r, std::uint64_t count) : local(l.view()), remote(r.view()) {
    request.struct_size = sizeof(request);
    request.count = count;
    request.local = &local;
    request.remote = &remote;
    for (std::uint64_t page = 0; page < count && common_page_bytes(request) == 0; ++page)
      request.bytes += page_length(request, page);
    if (common_page_bytes(request) != 0) request.bytes = count * common_page_bytes(request);
  }
  TwoSides(const TwoSides&) = delete;
  operator const headrace_prepare_v1&() const { return request; }
};

std::vector<PageRun> runs_of(PageCursor cursor, std::size_t batch = 1) {
  std::vector<PageRun> all;
  std::vector<PageRun> some(batch);
  while (const std::size_t n = cursor.fill(some))
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
  return all;
}

/// One byte of a request, by its place on both sides. A cursor must give each exactly once and in order.
struct BytePair {
  void* local_region;
  std::uint64_t local;
  void* remote_region;
  std::uint64_t remote;
  friend bool operator==(const BytePair&, const BytePair&) = default;
};

std::vector<BytePair> bytes_of(const headrace_prepare_v1& request, PagePosition from, PagePosition to) {
  std::vector<BytePair> bytes;
  for (std::uint64_t page = from.page; page < request.count && page <= to.page; ++page) {
    const std::uint64_t first = page == from.page ? from.skip : 0;
    const std::uint64_t last = page == to.page ? to.skip : page_length(request, page);
    for (std::uint64_t b = first; b < last; ++b)
      bytes.push_back({side_region(*request.local, page), offset_of(request.local->columns, page) + b,
                       side_region(*request.remote, page), offset_of(request.remote->columns, page) + b});
  }
  return bytes;
}

std::vector<BytePair> bytes_of(const std::vector<PageRun>& runs) {
  std::vector<BytePair> bytes;
  for (const PageRun& run : runs)
    for (std::uint64_t b = 0; b < run.bytes; ++b)
      bytes.push_back({run.local_region, run.local_offset + b, run.remote_region, run.remote_offset + b});
  return bytes;
}

TEST(page_cursor, contiguous_uniform_pages_are_one_run_found_without_a_visit_to_each) {
  const PageSide local = uniform(100, 64, 64), remote = uniform(0, 64, 64, 2);
  const TwoSides request(local, remote, std::uint64_t{1} << 40);  // a visit to each page would not end
  const auto runs = runs_of(PageCursor(request));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].bytes, std::uint64_t{64} << 40);
  EXPECT_EQ(runs[0].local_offset, 100U);
  EXPECT_EQ(runs[0].remote_region, region(2));
}

TEST(page_cursor, pages_that_touch_on_one_side_only_stay_apart) {
  const PageSide local = uniform(0, 64, 64), remote = uniform(0, 128, 64, 2);
  EXPECT_EQ(runs_of(PageCursor(TwoSides(local, remote, 10))).size(), 10U);
}

TEST(page_cursor, pages_that_touch_but_lie_in_different_regions_stay_apart) {
  PageSide local = uniform(0, 64, 64);
  local.regions = {region(1), region(2)};
  local.region_of = {0, 0, 1, 1};
  const PageSide remote = uniform(0, 64, 64, 3);
  const auto runs = runs_of(PageCursor(TwoSides(local, remote, 4)));
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].bytes, 128U);
  EXPECT_EQ(runs[1].local_region, region(2));
  EXPECT_EQ(runs[1].first_page, 2U);
}

TEST(page_cursor, capped_runs_end_between_pages_unless_a_page_is_longer_than_the_cap) {
  const PageSide side = uniform(0, 30, 30);
  const auto whole_pages = runs_of(PageCursor(TwoSides(side, side, 5), 70));
  ASSERT_EQ(whole_pages.size(), 3U);
  EXPECT_EQ(whole_pages[0].bytes, 60U);
  EXPECT_EQ(whole_pages[2].bytes, 30U);
  const auto cut = runs_of(PageCursor(TwoSides(side, side, 2), 20));
  ASSERT_EQ(cut.size(), 4U);
  EXPECT_EQ(cut[1].first_page, 0U);
  EXPECT_EQ(cut[1].first_page_skip, 20U);
  EXPECT_EQ(cut[1].bytes, 10U);
  EXPECT_EQ(cut[2].first_page, 1U);
}

TEST(page_cursor, an_empty_section_yields_no_run_and_leaves_the_argument_unchanged) {
  const PageSide side = uniform(0, 8, 8);
  const TwoSides request(side, side, 4);
  for (const auto& [from, to] : {std::pair<PagePosition, PagePosition>{{2, 0}, {2, 0}},
                                 {{2, 5}, {2, 5}},
                                 {{4, 0}, {4, 0}},
                                 {{3, 0}, {1, 0}}}) {
    PageCursor cursor(request, from, to);
    PageRun run;
    run.bytes = 77;
    EXPECT_FALSE(cursor.next(run));
    EXPECT_TRUE(cursor.done());
    EXPECT_EQ(run.bytes, 77U);
  }
}

TEST(page_cursor, position_at_byte_finds_bytes_in_pages_of_one_length_and_of_many) {
  PageSide local = uniform(0, 0, 0), remote = uniform(0, 0, 0, 2);
  local.lengths = remote.lengths = {3, 1, 7, 2};
  local.offsets = {0, 10, 20, 30};
  remote.offsets = {30, 20, 10, 0};
  const TwoSides own(local, remote, 4);
  EXPECT_EQ(position_at_byte(own, 0), (PagePosition{0, 0}));
  EXPECT_EQ(position_at_byte(own, 3), (PagePosition{1, 0}));
  EXPECT_EQ(position_at_byte(own, 10), (PagePosition{2, 6}));
  EXPECT_EQ(position_at_byte(own, 13), (PagePosition{4, 0}));
  EXPECT_EQ(position_at_byte(own, 5, {2, 1}), (PagePosition{2, 6}));
  EXPECT_EQ(position_at_byte(own, 6, {2, 1}), (PagePosition{3, 0}));
  const PageSide even = uniform(0, 5, 5);
  const TwoSides one(even, even, 4);
  EXPECT_EQ(position_at_byte(one, 12), (PagePosition{2, 2}));
  EXPECT_EQ(position_at_byte(one, 20), (PagePosition{4, 0}));
  EXPECT_EQ(position_at_byte(one, 4, {1, 3}), (PagePosition{2, 2}));
}

/// A side of random shape. `lengths` are the lengths of the pages in the order of the request.
PageSide random_side(std::mt19937_64& random, const std::vector<std::uint64_t>& lengths, bool one_length,
                     std::uintptr_t first_region) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const std::size_t count = lengths.size();
  PageSide side;
  const bool many_regions = below(2) != 0, own_offsets = below(2) != 0, indexed = below(2) != 0;
  const bool own_lengths = !one_length || below(4) == 0;
  const std::size_t slots = indexed ? count + below(8) : count;
  side.regions = {region(first_region)};
  if (many_regions)
    for (std::uintptr_t r = 1; r < 3; ++r) side.regions.push_back(region(first_region + r));
  side.page_bytes = lengths[0];
  side.base = below(5);
  side.stride = below(2) != 0 ? lengths[0] : lengths[0] + below(3);
  std::vector<std::uint32_t> slot_of(count);
  for (std::size_t i = 0; i < count; ++i) slot_of[i] = static_cast<std::uint32_t>(i);
  if (indexed) {
    // Mostly in order, so that neighbours touch; a few are swapped.
    for (std::size_t swaps = below(4); swaps > 0; --swaps)
      std::swap(slot_of[below(count)], slot_of[below(count)]);
    side.indices = slot_of;
  }
  if (own_lengths) {
    side.lengths.assign(slots, 1);
    for (std::size_t i = 0; i < count; ++i) side.lengths[slot_of[i]] = lengths[i];
  }
  if (own_offsets) {
    std::uint64_t at = below(10);
    side.offsets.resize(slots);
    for (std::size_t s = 0; s < slots; ++s) {
      side.offsets[s] = at;
      at += (own_lengths ? side.lengths[s] : side.page_bytes) + (below(3) == 0 ? below(4) : 0);
    }
  }
  if (many_regions) {
    side.region_of.resize(slots);
    std::uint32_t now = 0;
    for (auto& of : side.region_of) of = below(4) == 0 ? now = static_cast<std::uint32_t>(below(3)) : now;
  }
  return side;
}

TEST(page_cursor, every_byte_of_random_requests_comes_once_in_order_in_the_longest_runs) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const bool one_length = below(2) != 0;
    std::vector<std::uint64_t> lengths(1 + below(20), 1 + below(9));
    if (!one_length)
      for (auto& length : lengths) length = 1 + below(9);
    const PageSide local = random_side(random, lengths, one_length, 1),
                   remote = random_side(random, lengths, one_length, 11);
    const TwoSides sides(local, remote, lengths.size());
    const headrace_prepare_v1& request = sides.request;
    const std::uint64_t cap = below(3) == 0 ? PageCursor::no_limit : 1 + below(25);

    const std::uint64_t a = below(request.bytes + 1), b = below(request.bytes + 1);
    const PagePosition from = position_at_byte(request, std::min(a, b)),
                       to = position_at_byte(request, std::max(a, b));
    for (const auto& [begin, end] :
         {std::pair<PagePosition, PagePosition>{{0, 0}, {request.count, 0}}, {from, to}}) {
      const auto runs = runs_of(PageCursor(request, begin, end, cap), 1 + below(7));
      ASSERT_EQ(bytes_of(runs), bytes_of(request, begin, end)) << "round " << round;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        ASSERT_LE(runs[i].bytes, cap);
        const PageRun& run = runs[i];
        ASSERT_EQ(offset_of(request.local->columns, run.first_page) + run.first_page_skip, run.local_offset);
        if (i + 1 == runs.size()) break;
        const bool touch = run.local_region == runs[i + 1].local_region &&
                           run.remote_region == runs[i + 1].remote_region &&
                           run.local_offset + run.bytes == runs[i + 1].local_offset &&
                           run.remote_offset + run.bytes == runs[i + 1].remote_offset;
        ASSERT_FALSE(cap == PageCursor::no_limit && touch)
            << "round " << round << ": two runs should have been merged";
      }
    }
  }
}

TEST(page_cursor, a_walk_continues_from_its_position) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint64_t> lengths(20);
    for (auto& length : lengths) length = 1 + random() % 9;
    const PageSide local = random_side(random, lengths, false, 1),
                   remote = random_side(random, lengths, false, 11);
    const TwoSides sides(local, remote, lengths.size());
    const headrace_prepare_v1& request = sides.request;
    PageCursor first(request, 5);
    std::vector<PageRun> runs(1 + random() % 10);
    runs.resize(first.fill(runs));
    if (!first.done()) {
      const auto rest = runs_of(PageCursor(request, first.position(), {request.count, 0}, 5));
      runs.insert(runs.end(), rest.begin(), rest.end());
    }
    ASSERT_EQ(bytes_of(runs), bytes_of(request, {0, 0}, {request.count, 0}));
  }
}

// ------------------------------------------------------------------------------------------------ grids

/// A grid of random counts and strides, small enough that the pages of a test stay small.
headrace_page_grid_v1 random_grid(std::mt19937_64& random) {
  headrace_page_grid_v1 grid{};
  grid.dimensions = static_cast<std::uint32_t>(1 + random() % HEADRACE_GRID_MOST);
  grid.run_bytes = 1 + random() % 9;
  grid.runs = 1;
  for (std::uint32_t d = 0; d < grid.dimensions; ++d) {
    grid.runs *= grid.counts[d] = 2 + random() % 3;
    grid.local_strides[d] = 1 + random() % 1000;
    grid.remote_strides[d] = 1 + random() % 1000;
  }
  return grid;
}

/// All bytes of a request of grids, by a loop over the runs.
std::vector<BytePair> bytes_of_grids(const headrace_prepare_v1& request) {
  const headrace_page_grid_v1& grid = *request.grid;
  std::vector<BytePair> bytes;
  for (std::uint64_t page = 0; page < request.count; ++page) {
    for (std::uint64_t run = 0; run < grid.runs; ++run) {
      std::uint64_t local = offset_of(request.local->columns, page),
                    remote = offset_of(request.remote->columns, page);
      std::uint64_t rest = run;
      for (std::uint32_t d = grid.dimensions; d-- > 0; rest /= grid.counts[d]) {
        local += rest % grid.counts[d] * grid.local_strides[d];
        remote += rest % grid.counts[d] * grid.remote_strides[d];
      }
      for (std::uint64_t b = 0; b < grid.run_bytes; ++b)
        bytes.push_back(
            {side_region(*request.local, page), local + b, side_region(*request.remote, page), remote + b});
    }
  }
  return bytes;
}

TEST(page_cursor, the_runs_of_a_grid_come_in_order) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    PageSide local = uniform(random() % 99, 5000, 0), remote = uniform(random() % 99, 7000, 0, 2);
    if (random() % 2 == 0) local.indices = {4, 0, 3, 9};
    if (random() % 2 == 0) {
      remote.regions = {region(2), region(3)};
      remote.region_of = {0, 1, 1, 0};
      remote.offsets = {70'000, 5, 9'000, 1};
    }
    const headrace_page_grid_v1 grid = random_grid(random);
    local.page_bytes = remote.page_bytes = grid.runs * grid.run_bytes;
    TwoSides request(local, remote, 4);
    request.request.grid = &grid;
    const auto expected = bytes_of_grids(request);
    EXPECT_EQ(bytes_of(runs_of(PageCursor(request), 1 + random() % 50)), expected);
    EXPECT_EQ(bytes_of(runs_of(PageCursor(request, 1 + random() % 5))), expected);
    for (const PageRun& run : runs_of(PageCursor(request, 3), 7)) {
      ASSERT_LE(run.bytes, 3U);
      const auto at = static_cast<std::size_t>(run.first_page * local.page_bytes + run.first_page_skip);
      EXPECT_EQ(run.local_offset, expected[at].local);
      EXPECT_EQ(run.remote_offset, expected[at].remote);
    }
  }
}

TEST(page_cursor, a_grid_may_be_divided_at_any_byte) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 300; ++round) {
    PageSide local = uniform(0, 5000, 0), remote = uniform(0, 7000, 0, 2);
    const headrace_page_grid_v1 grid = random_grid(random);
    local.page_bytes = remote.page_bytes = grid.runs * grid.run_bytes;
    TwoSides request(local, remote, 5);
    request.request.grid = &grid;
    const auto expected = bytes_of_grids(request);
    std::vector<BytePair> found;
    PagePosition at;
    while (at.page < 5) {
      const PagePosition next = position_at_byte(request, 1 + random() % (2 * local.page_bytes), at);
      const auto part = bytes_of(runs_of(PageCursor(request, at, next), 3));
      found.insert(found.end(), part.begin(), part.end());
      EXPECT_TRUE(runs_of(PageCursor(request, next, next)).empty());
      at = next;
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(page_cursor, a_walk_over_grids_continues_from_its_position) {
  const PageSide local = uniform(0, 5000, 24), remote = uniform(0, 7000, 24, 2);
  headrace_page_grid_v1 grid{.dimensions = 2,
                             .reserved = 0,
                             .run_bytes = 4,
                             .runs = 6,
                             .counts = {2, 3},
                             .local_strides = {100, 10},
                             .remote_strides = {4, 50}};
  TwoSides request(local, remote, 2);
  request.request.grid = &grid;
  const auto expected = bytes_of_grids(request);
  for (std::size_t taken = 0; taken <= 12; ++taken) {
    PageCursor cursor(request);
    std::vector<PageRun> runs(taken);
    ASSERT_EQ(cursor.fill(runs), taken);
    auto found = bytes_of(runs);
    EXPECT_EQ(cursor.done(), taken == 12);
    const auto rest = cursor.done() ? std::vector<BytePair>()
                                    : bytes_of(runs_of(PageCursor(request, cursor.position(), {2, 0})));
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_EQ(found, expected) << taken;
  }
  EXPECT_EQ(remote_extent(request, 0), 4U + 1 * 4 + 2 * 50);
}

TEST(FirstPageIn, is_the_first_of_the_requests_pages_in_that_region) {
  PageSide side = uniform(0, 10, 10);
  EXPECT_EQ(first_page_in(side.view().columns, 3, 0), 0U);
  EXPECT_EQ(first_page_in(side.view().columns, 3, 1), no_page);
  side.regions = {region(1), region(2), region(3)};
  side.region_of = {0, 0, 2, 1};
  EXPECT_EQ(first_page_in(side.view().columns, 4, 1), 3U);
  EXPECT_EQ(first_page_in(side.view().columns, 3, 1), no_page);
  side.indices = {3, 2, 0};
  EXPECT_EQ(first_page_in(side.view().columns, 3, 1), 0U);
  EXPECT_EQ(first_page_in(side.view().columns, 3, 0), 2U);
}

}  // namespace
}  // namespace headrace
