// SPDX-License-Identifier: Apache-2.0
// Pages that are grids of runs: the kernels for pages move runs in their place, once each run is found.
#pragma once

#include "kernels/common/pages.cuh"
#include "kernels/grids/run_grid.cuh"

namespace headrace::kernels::grids {

/// The runs of all pages, numbered through, as the kernels for pages see pages. `Pages` says where a page
/// lies.
template <class Pages>
class GridRuns {
 public:
  using Args = GridLaunch;
  __device__ explicit GridRuns(const GridLaunch& args) : grid_(args.grid), pages_(args.pages) {}
  [[nodiscard]] __device__ unsigned long long count() const { return pages_.count() * grid_.runs; }
  [[nodiscard]] __device__ unsigned long long bytes() const { return grid_.run_bytes; }
  __device__ bool find(unsigned long long run, unsigned long long& source, unsigned long long& target) const {
    const unsigned number = static_cast<unsigned>(run);  // there are fewer than 2^31, says the host's half
    const unsigned page = grid_.per_page.divide(number);
    if (!pages_.find(page, source, target)) return false;
    grid_.add_place(number - page * grid_.runs, source, target);
    return true;
  }

 private:
  const RunGrid& grid_;
  const Pages pages_;
};

/// Runs of a power of two from 128 bytes to half a tile, all aligned: as one head of one token is. Lane i
/// finds out where run i of the warp's next tile lies, while the present one travels, and tells the lanes
/// that move it.
template <int Unroll, Hint hint, class Runs>
__device__ __forceinline__ void move_run_tiles(const GridLaunch& args) {
  const WarpPlace warp;
  const Runs runs(args);
  const unsigned shift =
      __ffs(static_cast<int>(runs.bytes() / vector_bytes)) - 1;  // vectors in a run: 1 << shift
  const unsigned per_tile = (warp_lanes * Unroll) >> shift;
  const unsigned long long total = runs.count();
  unsigned long long source = 0, target = 0;  // of lane i's run; 0: there is none
  const auto look_up = [&](unsigned long long first) {
    const unsigned long long run = first + warp.lane;
    unsigned long long from, to;
    const bool is_there = warp.lane < per_tile && run < total && runs.find(run, from, to);
    source = is_there ? from : 0;
    target = is_there ? to : 0;
  };
  look_up(warp.number * per_tile);
  for (unsigned long long first = warp.number * per_tile; first < total; first += warp.count * per_tile) {
    uint4 held[Unroll];
    uint4* to[Unroll];
    each<Unroll>([&]<int i>() {
      const unsigned vector = i * warp_lanes + warp.lane;
      const unsigned offset = vector & ((1u << shift) - 1);
      const auto* const from =
          reinterpret_cast<const uint4*>(__shfl_sync(all_lanes, source, vector >> shift));
      to[i] = reinterpret_cast<uint4*>(__shfl_sync(all_lanes, target, vector >> shift));
      if (from == nullptr) return;
      held[i] = load<0, hint>(from + offset);
      to[i] += offset;
    });
    look_up(first + warp.count * per_tile);
    each<Unroll>([&]<int i>() {
      if (to[i] != nullptr) store<0, hint>(to[i], held[i]);
    });
  }
}

}  // namespace headrace::kernels::grids
