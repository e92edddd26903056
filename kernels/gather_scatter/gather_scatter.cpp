// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_scatter/gather_scatter.hpp"

#include "kernels/gather_scatter/one_part.hpp"

#include <algorithm>

namespace headrace::kernels {
namespace {

constexpr unsigned few_threads = 256;
constexpr std::uint64_t warps_per_block = page_threads / 32;

bool can_be_told(const headrace_move_done_v1& done) { return done.word == 0 || done.state != 0; }

/// One small part of whole vectors, whose end is told by a value: what needs the least of a kernel.
bool is_one_part(const headrace_move_few_v1& args) {
  return args.count == 1 && args.lengths[0] <= one_part_most_bytes &&
         (args.sources[0] | args.targets[0] | args.lengths[0]) % vector_bytes == 0 && args.done.word != 0 &&
         args.done.value != 0;
}

}  // namespace

bool is_aligned(const headrace_move_side_v1& side, std::uint32_t flags) {
  const bool base =
      side.base_of != 0 ? (flags & HEADRACE_MOVE_BASES_ALIGNED) != 0 : side.base % vector_bytes == 0;
  return base && side.stride % vector_bytes == 0;
}

std::uint64_t blocks_for(const KernelSet& set, std::uint64_t warps, std::uint32_t most_multiprocessors) {
  const std::uint64_t budget =
      most_multiprocessors == 0 ? set.multiprocessors : std::min(most_multiprocessors, set.multiprocessors);
  return std::clamp<std::uint64_t>((warps + warps_per_block - 1) / warps_per_block, 1, budget);
}

bool are_complete(const headrace_move_pages_v1& args) {
  const bool can_be_checked =
      args.bounds == 0 || (args.refused != 0 && args.source.indices != 0 && args.target.indices != 0);
  return args.struct_size >= sizeof args && args.page_bytes != 0 && can_be_told(args.done) && can_be_checked;
}

std::int32_t move_pages(void* kernels, const headrace_move_pages_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  if (!are_complete(*args)) return invalid_value;
  const auto fitting = [args](void* told, void* checked) { return args->bounds != 0 ? checked : told; };
  const bool vectors = is_aligned(args->source, args->flags) && is_aligned(args->target, args->flags) &&
                       args->page_bytes % vector_bytes == 0;
  if (vectors && args->page_bytes < tile_bytes) {
    const std::uint64_t tiles = (args->count * args->page_bytes + tile_bytes - 1) / tile_bytes;
    return set.launch(args->page_bytes % row_bytes == 0
                          ? fitting(set.move_row_pages, set.move_checked_row_pages)
                          : fitting(set.move_small_pages, set.move_checked_small_pages),
                      blocks_for(set, tiles, args->most_multiprocessors), page_threads, *args, stream);
  }
  const std::uint64_t tiles = args->count * ((args->page_bytes + tile_bytes - 1) / tile_bytes);
  return set.launch(vectors ? fitting(set.move_aligned_pages, set.move_checked_aligned_pages)
                            : fitting(set.move_any_pages, set.move_checked_any_pages),
                    blocks_for(set, tiles, args->most_multiprocessors), page_threads, *args, stream);
}

std::int32_t move_parts(void* kernels, const headrace_move_parts_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  if (args->struct_size < sizeof *args || !can_be_told(args->done)) return invalid_value;
  return set.launch(set.move_parts, blocks_for(set, args->count, args->most_multiprocessors), page_threads,
                    *args, stream);
}

std::int32_t move_few(void* kernels, const headrace_move_few_v1* args, void* stream) {
  const auto& set = *static_cast<const KernelSet*>(kernels);
  const bool told = args->done.word == 0 || args->done.value != 0 || args->done.state != 0;
  if (args->struct_size < sizeof *args || args->count > HEADRACE_MOVE_FEW_MOST || !told) return invalid_value;
  if (is_one_part(*args))
    return set.launch(set.move_one, 1, one_part_threads,
                      OnePart{args->sources[0], args->targets[0], args->lengths[0], args->done}, stream);
  return set.launch(set.move_few, 1, few_threads, *args, stream);
}

}  // namespace headrace::kernels
