// SPDX-License-Identifier: Apache-2.0
// How the blocks of a launch share a list of pages.
#pragma once

#include "kernels/common/warp_copy.cuh"

#include <headrace/plugin/kernels/pages_v1.h>

namespace headrace::kernels {

__device__ __forceinline__ unsigned long long page_address(const headrace_move_side_v1& side,
                                                           unsigned long long page) {
  const headrace_columns_v1& columns = side.columns;
  const unsigned long long slot = columns.indices != nullptr ? __ldg(columns.indices + page) : page;
  const unsigned long long base =
      columns.region_of != nullptr ? __ldg(side.bases + __ldg(columns.region_of + slot)) : 0;
  return base + columns.base_offset + slot * columns.stride_bytes;
}

/// The pages of a launch as its arguments say: the host has checked them.
class ToldPages {
 public:
  using Args = headrace_move_pages_v1;
  __device__ explicit ToldPages(const headrace_move_pages_v1& args) : args_(args) {}
  [[nodiscard]] __device__ unsigned long long count() const { return args_.count; }
  [[nodiscard]] __device__ unsigned long long bytes() const { return args_.source.columns.page_bytes; }
  /// Where a page lies on both sides. False: it is to be skipped, and both are 0.
  __device__ bool find(unsigned long long page, unsigned long long& source,
                       unsigned long long& target) const {
    source = page_address(args_.source, page);
    target = page_address(args_.target, page);
    return true;
  }

 private:
  const headrace_move_pages_v1& args_;
};

/// Pages whose indices and number are in a table that a GPU may have written.
class CheckedPages {
 public:
  using Args = headrace_move_pages_v1;
  __device__ explicit CheckedPages(const headrace_move_pages_v1& args)
      : args_(args), bounds_(*reinterpret_cast<const headrace_move_bounds_v1*>(args.bounds)) {}
  [[nodiscard]] __device__ unsigned long long count() const {
    return bounds_.count < args_.count ? bounds_.count : args_.count;
  }
  [[nodiscard]] __device__ unsigned long long bytes() const { return args_.source.columns.page_bytes; }
  __device__ bool find(unsigned long long page, unsigned long long& source,
                       unsigned long long& target) const {
    const bool good = is_below(args_.source, page, bounds_.source_pages, 1) &&
                      is_below(args_.target, page, bounds_.target_pages, 2);
    source = good ? page_address(args_.source, page) : 0;
    target = good ? page_address(args_.target, page) : 0;
    return good;
  }

 private:
  __device__ bool is_below(const headrace_move_side_v1& side, unsigned long long page,
                           unsigned long long pages, unsigned which) const {
    if (__ldg(side.columns.indices + page) < pages) return true;
    // A reader that sees the end of the launch sees this: tell_done's fence comes after it.
    *reinterpret_cast<volatile unsigned long long*>(args_.refused) = 2 * page + which;
    return false;
  }

  const headrace_move_pages_v1& args_;
  const headrace_move_bounds_v1 bounds_;
};

/// Walks the tiles of a list of pages that fall to one warp: every count-th, so that neighbours run at the
/// same time.
struct TileWalk {
  unsigned long long page;
  unsigned tile;  // of the page
  unsigned tiles_per_page;
  unsigned long long page_step;
  unsigned tile_step;

  __device__ TileWalk(const WarpPlace& warp, unsigned tiles)
      : page(warp.number / tiles),
        tile(static_cast<unsigned>(warp.number % tiles)),
        tiles_per_page(tiles),
        page_step(warp.count / tiles),
        tile_step(static_cast<unsigned>(warp.count % tiles)) {}
  __device__ void next() {  // no division: additions and a carry
    page += page_step;
    tile += tile_step;
    if (tile >= tiles_per_page) tile -= tiles_per_page, ++page;
  }
};

/// Pages of any length and alignment. Tiles are cut where the target is aligned, so only a page's ends go by
/// bytes.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_any_pages(const typename Pages::Args& args) {
  constexpr unsigned tile_bytes = row_bytes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned tiles =
      static_cast<unsigned>((pages.bytes() + vector_bytes - 1 + tile_bytes - 1) / tile_bytes);
  for (TileWalk at(warp, tiles); at.page < pages.count(); at.next()) {
    RunSlice slice{0, 0, pages.bytes(), 0, pages.bytes()};
    if (!pages.find(at.page, slice.source, slice.target)) continue;
    const unsigned long long first = static_cast<unsigned long long>(at.tile) * tile_bytes;
    const unsigned skew = static_cast<unsigned>(slice.target) & (vector_bytes - 1);
    if (at.tile != 0) slice.begin = first - skew;
    if (slice.begin >= slice.run_bytes) continue;
    if (first + tile_bytes - skew < slice.run_bytes) slice.end = first + tile_bytes - skew;
    move_slice<Unroll, hint>(slice, warp.lane);
  }
}

/// Pages of whole tiles or more, all on both sides aligned. The next page's addresses are fetched while this
/// one travels.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_aligned_pages(const typename Pages::Args& args) {
  constexpr unsigned tile_bytes = row_bytes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned tiles = static_cast<unsigned>((pages.bytes() + tile_bytes - 1) / tile_bytes);
  TileWalk at(warp, tiles);
  if (at.page >= pages.count()) return;
  unsigned long long source, target;
  bool is_here = pages.find(at.page, source, target);
  for (;;) {
    const unsigned long long first = static_cast<unsigned long long>(at.tile) * tile_bytes;
    const unsigned long long left = pages.bytes() - first;
    const auto* from = reinterpret_cast<const uint4*>(source + first);
    auto* to = reinterpret_cast<uint4*>(target + first);
    const unsigned long long page = at.page;
    at.next();
    const bool more = at.page < pages.count();
    const bool is_next = more && at.page != page;
    if (!is_here) {
      if (is_next) is_here = pages.find(at.page, source, target);
    } else if (left >= tile_bytes) {
      uint4 held[Unroll];
      each<Unroll>([&]<int i>() { held[i] = load<i, hint>(from + warp.lane); });
      if (is_next) is_here = pages.find(at.page, source, target);
      each<Unroll>([&]<int i>() { store<i, hint>(to + warp.lane, held[i]); });
    } else {
      move_vectors<Unroll, hint>(from, to, left / vector_bytes, warp.lane);
      if (is_next) is_here = pages.find(at.page, source, target);
    }
    if (!more) return;
  }
}

/// Pages smaller than a tile, all aligned: a tile is vectors of several pages, so that as many bytes travel
/// as with large ones.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_small_pages(const typename Pages::Args& args) {
  constexpr unsigned tile = warp_lanes * Unroll;
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned per_page = static_cast<unsigned>(pages.bytes() / vector_bytes);
  const unsigned long long total = pages.count() * per_page;
  for (unsigned long long first = warp.number * tile; first < total; first += warp.count * tile) {
    uint4 held[Unroll];
    uint4* to[Unroll];
    const unsigned long long page0 = first / per_page;
    const unsigned skip = static_cast<unsigned>(first - page0 * per_page);
    each<Unroll>([&]<int i>() {
      const unsigned at = skip + i * warp_lanes + warp.lane;  // vectors from the beginning of page0
      const unsigned long long page = page0 + at / per_page;
      to[i] = nullptr;
      unsigned long long source, target;
      if (page >= pages.count() || !pages.find(page, source, target)) return;
      const unsigned offset = at % per_page;
      to[i] = reinterpret_cast<uint4*>(target) + offset;
      held[i] = load<0, hint>(reinterpret_cast<const uint4*>(source) + offset);
    });
    each<Unroll>([&]<int i>() {
      if (to[i] != nullptr) store<0, hint>(to[i], held[i]);
    });
  }
}

/// Pages smaller than a tile whose length is a multiple of a row: lane i finds out where row i of the warp's
/// next tile lies, while the present one travels, and tells the others. No division and no index is looked up
/// twice.
template <int Unroll, Hint hint, class Pages>
__device__ __forceinline__ void move_row_pages(const typename Pages::Args& args) {
  const WarpPlace warp;
  const Pages pages(args);
  const unsigned per_page = static_cast<unsigned>(pages.bytes() / row_bytes);
  const unsigned long long total = pages.count() * per_page;
  unsigned long long source = 0, target = 0;  // of lane i's row; 0: there is none
  const auto look_up = [&](unsigned long long first) {
    const unsigned long long row = first + warp.lane;
    source = target = 0;
    if (warp.lane >= Unroll || row >= total) return;
    const unsigned long long page = row / per_page;
    const unsigned long long skip = (row - page * per_page) * row_bytes;
    unsigned long long from, to;
    if (pages.find(page, from, to)) source = from + skip, target = to + skip;
  };
  look_up(warp.number * Unroll);
  for (unsigned long long first = warp.number * Unroll; first < total; first += warp.count * Unroll) {
    uint4 held[Unroll];
    uint4* to[Unroll];
    each<Unroll>([&]<int i>() {
      const auto* const from = reinterpret_cast<const uint4*>(__shfl_sync(all_lanes, source, i));
      to[i] = reinterpret_cast<uint4*>(__shfl_sync(all_lanes, target, i));
      if (from != nullptr) held[i] = load<0, hint>(from + warp.lane);
    });
    look_up(first + warp.count * Unroll);
    each<Unroll>([&]<int i>() {
      if (to[i] != nullptr) store<0, hint>(to[i] + warp.lane, held[i]);
    });
  }
}

}  // namespace headrace::kernels
