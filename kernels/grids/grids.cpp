// SPDX-License-Identifier: Apache-2.0
#include "kernels/grids/grids.hpp"

#include "kernels/gather_scatter/gather_scatter.hpp"
#include "kernels/launch.hpp"

#include <bit>

namespace headrace::kernels {
namespace {

constexpr std::uint64_t most_runs =
    (std::uint64_t{1} << 31) - 1;  // of a launch: Divisor takes no larger numbers
constexpr std::uint64_t least_tiled_bytes = 128, most_tiled_bytes = 2048;

bool is_aligned(const RunGrid& grid) {
  std::uint64_t all = grid.run_bytes;
  for (unsigned d = 0; d < grid.dimensions; ++d) all |= grid.source_strides[d] | grid.target_strides[d];
  return all % vector_bytes == 0;
}

}  // namespace

std::optional<RunGrid> run_grid(const headrace_move_grids_v1& args) {
  if (args.dimensions == 0 || args.dimensions > HEADRACE_MOVE_GRID_MOST || args.run_bytes == 0) return {};
  RunGrid grid{};
  grid.run_bytes = args.run_bytes;
  std::uint64_t runs = 1;
  for (unsigned d = args.dimensions; d-- > 0;) {
    if (args.counts[d] == 0 || args.counts[d] > most_runs / runs) return {};
    runs *= args.counts[d];
    if (args.counts[d] == 1) continue;
    grid.counts[grid.dimensions] = Divisor::of(static_cast<unsigned>(args.counts[d]));
    grid.source_strides[grid.dimensions] = args.source_strides[d];
    grid.target_strides[grid.dimensions++] = args.target_strides[d];
  }
  if (args.pages.page_bytes / runs != args.run_bytes || args.pages.page_bytes % runs != 0) return {};
  if (args.pages.count > most_runs / runs) return {};
  grid.runs = static_cast<unsigned>(runs);
  if (runs > 1) grid.per_page = Divisor::of(grid.runs);
  return grid;
}

std::int32_t move_grids(void* kernels, const headrace_move_grids_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  if (args->struct_size < sizeof *args || !are_complete(args->pages)) return invalid_value;
  const std::optional<RunGrid> grid = run_grid(*args);
  if (!grid) return invalid_value;
  if (grid->runs == 1) return move_pages(kernels, &args->pages, stream);
  const headrace_move_pages_v1& pages = args->pages;
  const auto fitting = [&pages](void* told, void* checked) { return pages.bounds != 0 ? checked : told; };
  const bool vectors =
      is_aligned(pages.source, pages.flags) && is_aligned(pages.target, pages.flags) && is_aligned(*grid);
  const bool tiled = vectors && std::has_single_bit(grid->run_bytes) &&
                     grid->run_bytes >= least_tiled_bytes && grid->run_bytes <= most_tiled_bytes;
  void* const function = tiled      ? fitting(set.move_grid_tiles, set.move_checked_grid_tiles)
                         : !vectors ? fitting(set.move_grid_any, set.move_checked_grid_any)
                         : grid->run_bytes < tile_bytes
                             ? fitting(set.move_grid_small, set.move_checked_grid_small)
                             : fitting(set.move_grid_aligned, set.move_checked_grid_aligned);
  // Of runs that vectors move a tile holds several; of others each is a tile, or more.
  const std::uint64_t runs = pages.count * grid->runs;
  const std::uint64_t tiles = vectors && grid->run_bytes < tile_bytes
                                  ? (runs * grid->run_bytes + tile_bytes - 1) / tile_bytes
                                  : runs * ((grid->run_bytes + tile_bytes - 1) / tile_bytes);
  return set.launch(function, blocks_for(set, tiles, pages.most_multiprocessors), page_threads,
                    GridLaunch{pages, *grid}, stream);
}

}  // namespace headrace::kernels
