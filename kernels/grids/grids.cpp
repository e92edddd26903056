// SPDX-License-Identifier: Apache-2.0
#include "kernels/grids/grids.hpp"

#include "kernels/common/pages.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace headrace::kernels::grids {
namespace {

struct Functions {
  PagesKernel tiles, small, aligned, any;
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_move_grid_tiles", offsetof(Functions, tiles.told)},
    {"headrace_move_checked_grid_tiles", offsetof(Functions, tiles.checked)},
    {"headrace_move_grid_small", offsetof(Functions, small.told)},
    {"headrace_move_checked_grid_small", offsetof(Functions, small.checked)},
    {"headrace_move_grid_aligned", offsetof(Functions, aligned.told)},
    {"headrace_move_checked_grid_aligned", offsetof(Functions, aligned.checked)},
    {"headrace_move_grid_any", offsetof(Functions, any.told)},
    {"headrace_move_checked_grid_any", offsetof(Functions, any.checked)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

constexpr std::uint64_t most_runs =
    (std::uint64_t{1} << 31) - 1;  // of a launch: Divisor takes no larger numbers
constexpr std::uint64_t least_tiled_bytes = 128, most_tiled_bytes = 2048;

bool has_aligned_runs(const RunGrid& grid) {
  std::uint64_t all = grid.run_bytes;
  for (unsigned d = 0; d < grid.dimensions; ++d) all |= grid.source_strides[d] | grid.target_strides[d];
  return all % vector_bytes == 0;
}

bool fits_tiles(const RunGrid& grid) {
  return std::has_single_bit(grid.run_bytes) && grid.run_bytes >= least_tiled_bytes &&
         grid.run_bytes <= most_tiled_bytes;
}

std::int32_t move_grids(void* kernels, const headrace_move_grids_v1* args, void* stream) {
  const headrace_move_pages_v1& pages = args->pages;
  if (args->struct_size < sizeof *args || !are_complete(pages)) return invalid_value;
  const std::optional<RunGrid> grid = run_grid(*args);
  if (!grid) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const auto& functions = set.functions_of<Functions>(family);
  const bool vectors = is_aligned(pages.source, pages.flags) && is_aligned(pages.target, pages.flags) &&
                       has_aligned_runs(*grid);
  const bool share_tiles = vectors && grid->run_bytes < tile_bytes;
  const PagesKernel& kernel = !vectors            ? functions.any
                              : !share_tiles      ? functions.aligned
                              : fits_tiles(*grid) ? functions.tiles
                                                  : functions.small;
  const std::uint64_t runs = pages.count * grid->runs;
  const std::uint64_t tiles =
      share_tiles ? tiles_of(runs * grid->run_bytes) : runs * tiles_of(grid->run_bytes);
  return set.launch(kernel.fitting(pages), blocks_for(set, tiles, pages.most_multiprocessors), page_threads,
                    GridLaunch{pages, *grid}, stream);
}

constexpr headrace_grids_v1 table{{sizeof table, HEADRACE_GRIDS_FAMILY_VERSION, 0}, move_grids};

}  // namespace

constinit const Family family{HEADRACE_GRIDS_FAMILY, &table.family, family_kernels, sizeof(Functions)};

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
  if (runs < 2 || args.pages.count > most_runs / runs) return {};
  if (page_bytes(args.pages) / runs != args.run_bytes || page_bytes(args.pages) % runs != 0) return {};
  grid.runs = static_cast<unsigned>(runs);
  grid.per_page = Divisor::of(grid.runs);
  return grid;
}

}  // namespace headrace::kernels::grids
