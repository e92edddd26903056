// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_scatter/gather_scatter.hpp"

#include "kernels/launch.hpp"

#include <algorithm>

namespace headrace::kernels {
namespace {

// As in gather_scatter.cuh.
constexpr std::uint64_t vector_bytes = 16;
constexpr std::uint64_t row_bytes = 512;
constexpr std::uint64_t tile_bytes = 4096;

// One block of this size fills a multiprocessor's load queues, and blocks go to multiprocessors one by one:
// so a budget of multiprocessors is a number of blocks.
constexpr unsigned threads = 512;
constexpr unsigned few_threads = 256;
constexpr std::uint64_t warps_per_block = threads / 32;

bool aligned(const headrace_move_side_v1& side, std::uint32_t flags) {
  const bool base =
      side.base_of != 0 ? (flags & HEADRACE_MOVE_BASES_ALIGNED) != 0 : side.base % vector_bytes == 0;
  return base && side.stride % vector_bytes == 0;
}

/// As many blocks as there is work for, within the budget.
std::uint64_t blocks_for(const KernelSet& set, std::uint64_t warps, std::uint32_t most_multiprocessors) {
  const std::uint64_t budget =
      most_multiprocessors == 0 ? set.multiprocessors : std::min(most_multiprocessors, set.multiprocessors);
  return std::clamp<std::uint64_t>((warps + warps_per_block - 1) / warps_per_block, 1, budget);
}

bool can_be_told(const headrace_move_done_v1& done) { return done.word == 0 || done.state != 0; }
bool can_be_checked(const headrace_move_pages_v1& args) {
  return args.bounds == 0 || (args.refused != 0 && args.source.indices != 0 && args.target.indices != 0);
}

}  // namespace

std::int32_t move_pages(void* kernels, const headrace_move_pages_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  if (args->struct_size < sizeof *args || args->page_bytes == 0 || !can_be_told(args->done) ||
      !can_be_checked(*args))
    return invalid_value;
  const auto fitting = [args](void* told, void* checked) { return args->bounds != 0 ? checked : told; };
  const bool vectors = aligned(args->source, args->flags) && aligned(args->target, args->flags) &&
                       args->page_bytes % vector_bytes == 0;
  if (vectors && args->page_bytes < tile_bytes) {
    const std::uint64_t tiles = (args->count * args->page_bytes + tile_bytes - 1) / tile_bytes;
    return set.launch(args->page_bytes % row_bytes == 0
                          ? fitting(set.move_row_pages, set.move_checked_row_pages)
                          : fitting(set.move_small_pages, set.move_checked_small_pages),
                      blocks_for(set, tiles, args->most_multiprocessors), threads, *args, stream);
  }
  const std::uint64_t tiles = args->count * ((args->page_bytes + tile_bytes - 1) / tile_bytes);
  return set.launch(vectors ? fitting(set.move_aligned_pages, set.move_checked_aligned_pages)
                            : fitting(set.move_any_pages, set.move_checked_any_pages),
                    blocks_for(set, tiles, args->most_multiprocessors), threads, *args, stream);
}

std::int32_t move_parts(void* kernels, const headrace_move_parts_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  if (args->struct_size < sizeof *args || !can_be_told(args->done)) return invalid_value;
  return set.launch(set.move_parts, blocks_for(set, args->count, args->most_multiprocessors), threads, *args,
                    stream);
}

std::int32_t move_few(void* kernels, const headrace_move_few_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  const bool told = args->done.word == 0 || args->done.value != 0 || args->done.state != 0;
  if (args->struct_size < sizeof *args || args->count > HEADRACE_MOVE_FEW_MOST || !told) return invalid_value;
  return set.launch(set.move_few, 1, few_threads, *args, stream);
}

}  // namespace headrace::kernels
