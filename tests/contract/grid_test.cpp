// SPDX-License-Identifier: Apache-2.0
// Pages that are grids of runs: what moves is what a loop over all indices moves, and nothing else.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace headrace::contract {
namespace {

/// A list of pages, each a grid on both sides, none of whose bytes lies in two places of a destination.
struct GridPages {
  headrace_page_grid_v1 grid{};
  std::uint64_t count = 0;
  // Regular sides: page i begins at base + index * stride of region `region`.
  std::uint64_t local_base = 0, remote_base = 0, local_stride = 0, remote_stride = 0;
  std::uint32_t local_region = 0, remote_region = 0;
  std::vector<std::uint32_t> local_index, remote_index;  ///< empty: in order

  [[nodiscard]] std::uint64_t page_bytes() const { return grid.runs * grid.run_bytes; }
};

/// Every run of the list as a page of its own: the reference, by a loop over all indices.
std::vector<PagePair> pages_of(const GridPages& list) {
  const headrace_page_grid_v1& grid = list.grid;
  std::vector<PagePair> pages;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    const std::uint64_t here = list.local_index.empty() ? i : list.local_index[i];
    const std::uint64_t there = list.remote_index.empty() ? i : list.remote_index[i];
    std::array<std::uint64_t, HEADRACE_GRID_MOST> most{1, 1, 1, 1}, at{};
    std::copy_n(grid.counts, grid.dimensions, most.begin());
    for (at[0] = 0; at[0] < most[0]; ++at[0])
      for (at[1] = 0; at[1] < most[1]; ++at[1])
        for (at[2] = 0; at[2] < most[2]; ++at[2])
          for (at[3] = 0; at[3] < most[3]; ++at[3]) {
            PagePair run{list.local_region, list.local_base + here * list.local_stride, list.remote_region,
                         list.remote_base + there * list.remote_stride, grid.run_bytes};
            for (std::uint32_t d = 0; d < grid.dimensions; ++d) {
              run.local_offset += at[d] * grid.local_strides[d];
              run.remote_offset += at[d] * grid.remote_strides[d];
            }
            pages.push_back(run);
          }
  }
  return pages;
}

/// Strides that lay the counts out in a random order of dimensions, with gaps here and there; what a page
/// spreads over.
std::uint64_t lay_out(std::mt19937_64& random, const headrace_page_grid_v1& grid, std::uint64_t* strides) {
  std::array<std::uint32_t, HEADRACE_GRID_MOST> order{0, 1, 2, 3};
  std::shuffle(order.begin(), order.begin() + grid.dimensions, random);
  std::uint64_t span = grid.run_bytes;
  for (std::uint32_t i = 0; i < grid.dimensions; ++i) {
    strides[order[i]] = span + (random() % 2 == 0 ? random() % 40 : 0);
    span += (grid.counts[order[i]] - 1) * strides[order[i]];
  }
  return span;
}

GridPages random_grid(std::mt19937_64& random, std::uint64_t run_bytes) {
  GridPages list;
  list.grid.run_bytes = run_bytes;
  list.grid.dimensions = static_cast<std::uint32_t>(1 + random() % HEADRACE_GRID_MOST);
  list.grid.runs = 1;
  for (std::uint32_t d = 0; d < list.grid.dimensions; ++d)
    list.grid.runs *= list.grid.counts[d] = 2 + random() % (list.grid.dimensions > 2 ? 4 : 11);
  list.local_stride = lay_out(random, list.grid, list.grid.local_strides) + random() % 50;
  list.remote_stride = lay_out(random, list.grid, list.grid.remote_strides) + random() % 50;
  list.local_base = random() % 70;
  list.remote_base = random() % 70;
  list.count = 1 + random() % 9;
  return list;
}

std::vector<std::uint32_t> shuffled(std::mt19937_64& random, std::uint64_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

std::uint64_t reach(const GridPages& list) {
  std::uint64_t end = 0;
  for (const PagePair& page : pages_of(list))
    end = std::max({end, page.local_offset + page.bytes, page.remote_offset + page.bytes});
  return end;
}

struct Sides {
  Arena local, remote;
  std::vector<Remote> remotes;
};

PageSide side(const std::vector<void*>& handles, std::uint32_t region, std::uint64_t base,
              std::uint64_t stride, const GridPages& list, const std::vector<std::uint32_t>& indices) {
  PageSide made = uniform_side(handles[region], base, stride, list.page_bytes());
  made.indices = indices;
  return made;
}

/// The same pages as a table of regions, offsets and lengths.
PageSide listed(const std::vector<void*>& handles, std::uint32_t region, std::uint64_t base,
                std::uint64_t stride, const GridPages& list, const std::vector<std::uint32_t>& indices) {
  PageSide made;
  made.regions = handles;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    made.region_of.push_back(region);
    made.offsets.push_back(base + (indices.empty() ? i : indices[i]) * stride);
    made.lengths.push_back(list.page_bytes());
  }
  return made;
}

void move_and_compare(Instance& initiator, const Link* link, Sides& sides, const GridPages& list,
                      headrace_op_v1 op, bool as_table) {
  const auto make = as_table ? &listed : &side;
  Request request(initiator, op, link,
                  make(sides.local.handles(), list.local_region, list.local_base, list.local_stride, list,
                       list.local_index),
                  make(handles_of(sides.remotes), list.remote_region, list.remote_base, list.remote_stride,
                       list, list.remote_index),
                  list.count, list.grid);
  const PostEnd end = request.run();
  ASSERT_TRUE(end.status.ok()) << code_name(end.status.code) << ", page " << end.status.page << ": "
                               << end.text;
  move_pages(pages_of(list), op, sides.local.expected(), sides.remote.expected());
  ASSERT_TRUE(sides.local.as_expected());
  ASSERT_TRUE(sides.remote.as_expected());
  sides.local.refill();
  sides.remote.refill();
}

void move_random_grids(Instance& initiator, Instance& owner, const Link* link, std::mt19937_64& random) {
  constexpr std::uint64_t room = 1'500'000;
  Sides sides{Arena(initiator), Arena(owner, true), {}};
  sides.local.add_mixed(2, room);
  sides.remote.add_mixed(2, room);
  sides.remotes = link != nullptr ? load_all(*link, sides.remote) : load_all(initiator, sides.remote);
  for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
    for (const std::uint64_t run_bytes : {1, 2, 16, 37, 128, 256, 500, 4096}) {
      GridPages list = random_grid(random, run_bytes);
      while (reach(list) > room) list = random_grid(random, run_bytes);
      list.local_region = static_cast<std::uint32_t>(random() % 2);
      list.remote_region = static_cast<std::uint32_t>(random() % 2);
      if (random() % 2 == 0) list.local_index = shuffled(random, list.count);
      if (random() % 2 == 0) list.remote_index = shuffled(random, list.count);
      for (const bool as_table : {false, true}) {
        SCOPED_TRACE(fmt::format("{} of {} pages of {} runs of {} bytes in {} dimensions{}",
                                 op == HEADRACE_READ ? "read" : "write", list.count, list.grid.runs,
                                 run_bytes, list.grid.dimensions, as_table ? ", as a table" : ""));
        ASSERT_NO_FATAL_FAILURE(move_and_compare(initiator, link, sides, list, op, as_table));
      }
    }
  }
}

/// Of a cache [2, blocks, 16, heads, 128] of 2-byte elements the heads from `first` on, in pages that are a
/// block's K and V: (2, 16, heads, 256 bytes) in the order of tokens, whether it lies as tokens x heads or as
/// heads x tokens.
struct CacheSide {
  std::uint64_t blocks, heads, first;
  bool heads_outside;

  static constexpr std::uint64_t tokens = 16, head_bytes = 256;
  [[nodiscard]] std::uint64_t block_bytes() const { return tokens * heads * head_bytes; }
  [[nodiscard]] std::uint64_t bytes() const { return 2 * blocks * block_bytes(); }
  [[nodiscard]] std::uint64_t base() const {
    return first * (heads_outside ? tokens * head_bytes : head_bytes);
  }
  void strides(std::uint64_t* out) const {
    out[0] = blocks * block_bytes();
    out[1] = heads_outside ? head_bytes : heads * head_bytes;
    out[2] = heads_outside ? tokens * head_bytes : head_bytes;
  }
};

GridPages cache_pages(const CacheSide& here, const CacheSide& there, std::uint64_t heads) {
  GridPages list;
  list.grid.dimensions = 3;
  list.grid.run_bytes = CacheSide::head_bytes;
  list.grid.runs = 2 * CacheSide::tokens * heads;
  const std::array<std::uint64_t, 3> counts{2, CacheSide::tokens, heads};
  std::copy(counts.begin(), counts.end(), list.grid.counts);
  here.strides(list.grid.local_strides);
  there.strides(list.grid.remote_strides);
  list.local_base = here.base();
  list.remote_base = there.base();
  list.local_stride = here.block_bytes();
  list.remote_stride = there.block_bytes();
  return list;
}

void move_cache(Instance& initiator, Instance& owner, const Link* link, std::mt19937_64& random,
                std::uint64_t blocks) {
  struct Layout {
    const char* name;
    CacheSide here, there;
    std::uint64_t heads;
  };
  const std::vector<Layout> layouts = {
      {"NHD to HND", {blocks, 8, 0, false}, {blocks + 3, 8, 0, true}, 8},
      {"HND to NHD", {blocks, 8, 0, true}, {blocks + 3, 8, 0, false}, 8},
      {"one of two ranks to one that has all heads", {blocks, 4, 0, false}, {blocks + 1, 8, 4, false}, 4},
      {"all heads to one of four ranks, transposed", {blocks, 8, 6, false}, {blocks + 2, 2, 0, true}, 2},
      {"one of four ranks to one of two", {blocks, 2, 0, true}, {blocks, 4, 2, false}, 2},
  };
  for (const Layout& layout : layouts) {
    Sides sides{Arena(initiator), Arena(owner, true), {}};
    sides.local.add(random() % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared, layout.here.bytes());
    sides.remote.add(random() % 2 == 0 ? Memory::Kind::plain : Memory::Kind::shared, layout.there.bytes());
    sides.remotes = link != nullptr ? load_all(*link, sides.remote) : load_all(initiator, sides.remote);
    for (const headrace_op_v1 op : {HEADRACE_READ, HEADRACE_WRITE}) {
      SCOPED_TRACE(fmt::format("{}, {}", layout.name, op == HEADRACE_READ ? "read" : "write"));
      GridPages list = cache_pages(layout.here, layout.there, layout.heads);
      list.local_index = shuffled(random, layout.here.blocks);
      list.remote_index = shuffled(random, layout.there.blocks);
      list.count = blocks - 1;
      list.local_index.resize(list.count);
      list.remote_index.resize(list.count);
      ASSERT_NO_FATAL_FAILURE(move_and_compare(initiator, link, sides, list, op, false));
    }
  }
}

class GridTransfer : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(GridTransfer, HEADRACE_REMOTE | HEADRACE_GRID);

TEST_P(GridTransfer, runs_of_any_layout_arrive_and_nothing_else_changes) {
  const Pair pair = open_pair();
  move_random_grids(*pair.a, *pair.b, &pair.ab, random);
}

TEST_P(GridTransfer, the_accepting_side_of_a_link_moves_them_as_well) {
  const Pair pair = open_pair();
  move_random_grids(*pair.b, *pair.a, &pair.ba, random);
}

TEST_P(GridTransfer, a_cache_goes_from_layout_to_layout) {
  const Pair pair = open_pair();
  move_cache(*pair.a, *pair.b, &pair.ab, random, 40);
}

class LocalGridTransfer : public Contract {};
HEADRACE_FOR_EACH_BACKEND_THAT(LocalGridTransfer, HEADRACE_LOCAL | HEADRACE_GRID);

TEST_P(LocalGridTransfer, runs_of_any_layout_arrive_and_nothing_else_changes) {
  const auto a = open();
  move_random_grids(*a, *a, nullptr, random);
}

TEST_P(LocalGridTransfer, a_cache_goes_from_layout_to_layout) {
  const auto a = open();
  move_cache(*a, *a, nullptr, random, 40);
}

}  // namespace
}  // namespace headrace::contract
