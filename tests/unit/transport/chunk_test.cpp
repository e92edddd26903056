// SPDX-License-Identifier: Apache-2.0
#include "transport/chunk.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headrace::transport {
namespace {

constexpr std::uint64_t max_ranges = 4096;

struct Shape {
  std::vector<std::uint64_t> offsets, lengths;
  void* region = nullptr;
  void* regions[1] = {static_cast<void*>(&region)};
  headrace_side_v1 side{};
  headrace_prepare_v1 request{};

  void uniform(std::uint64_t count, std::uint64_t page_bytes) {
    side.struct_size = sizeof side;
    side.regions = regions;
    side.region_count = 1;
    side.columns.page_bytes = side.columns.stride_bytes = page_bytes;
    request = {sizeof request, HEADRACE_READ, 0, nullptr, count, count * page_bytes, &side, &side, nullptr};
  }
  void own_lengths(std::vector<std::uint64_t> all) {
    lengths = std::move(all);
    uniform(lengths.size(), 0);
    std::uint64_t at = 0;
    for (const std::uint64_t length : lengths) offsets.push_back(at), at += length + 1;
    side.columns.offsets = offsets.data();
    side.columns.lengths = lengths.data();
    request.bytes = 0;
    for (const std::uint64_t length : lengths) request.bytes += length;
  }
};

/// Cuts all of it and checks that the chunks lie end to end and hold what a cursor finds in them.
std::vector<Chunk> cut_all(const headrace_prepare_v1& request, const ChunkLimits& limits) {
  std::vector<Chunk> chunks;
  std::uint64_t bytes = 0;
  for (PagePosition at = skip_empty_pages(request, {0, 0}); at.page < request.count;) {
    const Chunk chunk = cut_chunk(request, at, limits);
    EXPECT_EQ(chunk.from, at);
    EXPECT_GT(chunk.bytes, 0U);
    EXPECT_LE(chunk.bytes, limits.bytes);
    EXPECT_LE(most_ranges(request, chunk), limits.ranges);
    bytes += chunk.bytes;
    at = skip_empty_pages(request, chunk.to);
    chunks.push_back(chunk);
    if (chunks.size() > 2'000'000) break;
  }
  EXPECT_EQ(bytes, request.bytes);
  return chunks;
}

std::uint64_t bytes_by_cursor(const headrace_prepare_v1& request, const Chunk& chunk) {
  PageCursor cursor(request, chunk.from, chunk.to);
  PageRun run;
  std::uint64_t bytes = 0;
  while (cursor.next(run)) bytes += run.bytes;
  return bytes;
}

TEST(Chunk, pages_of_one_length_are_cut_between_pages) {
  Shape shape;
  shape.uniform(1000, 4096);
  const auto chunks = cut_all(shape.request, {1 << 20, 4096});
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_EQ(chunks[0].to, (PagePosition{256, 0}));
  EXPECT_EQ(chunks[3].bytes, 232U * 4096);
  for (const Chunk& chunk : chunks) EXPECT_EQ(bytes_by_cursor(shape.request, chunk), chunk.bytes);
}

TEST(Chunk, small_pages_are_cut_at_the_most_ranges_a_frame_has) {
  Shape shape;
  shape.uniform(10'000, 8);
  EXPECT_EQ(cut_all(shape.request, {1 << 20, max_ranges}).size(), 3U);
}

TEST(Chunk, a_page_longer_than_a_chunk_is_cut_within) {
  Shape shape;
  shape.uniform(3, 1'000'001);
  const auto chunks = cut_all(shape.request, {300'000, 4096});
  EXPECT_EQ(chunks[0].to, (PagePosition{0, 300'000}));
  for (const Chunk& chunk : chunks) EXPECT_EQ(bytes_by_cursor(shape.request, chunk), chunk.bytes);
}

TEST(Chunk, random_lengths_with_empty_pages_are_all_covered) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint64_t> lengths(1 + random() % 3000);
    for (auto& length : lengths)
      length = random() % 10 == 0 ? 0 : 1 + random() % (random() % 50 == 0 ? 100'000 : 300);
    Shape shape;
    shape.own_lengths(std::move(lengths));
    for (const Chunk& chunk : cut_all(shape.request, {1 + random() % 20'000, 1 + random() % 100}))
      ASSERT_EQ(bytes_by_cursor(shape.request, chunk), chunk.bytes);
  }
}

TEST(Chunk, ten_million_pages_are_cut_one_chunk_at_a_time) {
  Shape shape;
  shape.uniform(10'000'000, 64);
  EXPECT_EQ(cut_all(shape.request, {1 << 20, max_ranges}).size(),
            (10'000'000U + max_ranges - 1) / max_ranges);
}

/// Pages of `runs` runs that lie apart on both sides.
headrace_page_grid_v1 grid_of(std::uint64_t runs, std::uint64_t run_bytes) {
  headrace_page_grid_v1 grid{};
  grid.dimensions = 1;
  grid.run_bytes = run_bytes;
  grid.runs = grid.counts[0] = runs;
  grid.local_strides[0] = run_bytes + 1;
  grid.remote_strides[0] = run_bytes + 2;
  return grid;
}

std::uint64_t runs_by_cursor(const headrace_prepare_v1& request, const Chunk& chunk) {
  PageCursor cursor(request, chunk.from, chunk.to);
  std::uint64_t runs = 0;
  for (PageRun run; cursor.next(run);) ++runs;
  return runs;
}

TEST(chunk, pages_that_are_grids_are_cut_between_runs_at_the_limit_of_ranges) {
  const headrace_page_grid_v1 grid = grid_of(100, 256);
  Shape shape;
  shape.uniform(1000, grid.runs * grid.run_bytes);
  shape.request.grid = &grid;
  const auto chunks = cut_all(shape.request, {64 << 20, 4096});
  ASSERT_EQ(chunks.size(), (100'000U + 4095) / 4096);
  for (const Chunk& chunk : chunks) {
    EXPECT_EQ(chunk.to.skip % 256, 0U);
    EXPECT_EQ(runs_by_cursor(shape.request, chunk), most_ranges(shape.request, chunk));
    EXPECT_EQ(bytes_by_cursor(shape.request, chunk), chunk.bytes);
  }
  for (const Chunk& chunk : cut_all(shape.request, {1000, 4096}))
    EXPECT_EQ(chunk.bytes, chunk.to.page == 1000 && chunk.to.skip == 0 ? chunk.bytes : 768U);
}

TEST(chunk, a_run_that_is_longer_than_the_limit_is_cut) {
  const headrace_page_grid_v1 grid = grid_of(3, 1000);
  Shape shape;
  shape.uniform(4, 3000);
  shape.request.grid = &grid;
  for (const std::uint64_t limit : {1U, 7U, 999U, 1000U, 1001U, 2500U, 100'000U}) {
    for (const Chunk& chunk : cut_all(shape.request, {limit, 4096})) {
      EXPECT_EQ(bytes_by_cursor(shape.request, chunk), chunk.bytes);
      EXPECT_LE(runs_by_cursor(shape.request, chunk), most_ranges(shape.request, chunk));
    }
  }
}

}  // namespace
}  // namespace headrace::transport
