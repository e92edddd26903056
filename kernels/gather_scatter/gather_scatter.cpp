// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_scatter/gather_scatter.hpp"

#include "kernels/common/pages.hpp"
#include "kernels/gather_scatter/one_run.cuh"

#include <headrace/plugin/kernels/gather_scatter_v1.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace headrace::kernels::gather_scatter {
namespace {

struct Functions {
  PagesKernel aligned_pages, row_pages, small_pages, any_pages;
  void *runs, *few, *one;
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_move_aligned_pages", offsetof(Functions, aligned_pages.told)},
    {"headrace_move_checked_aligned_pages", offsetof(Functions, aligned_pages.checked)},
    {"headrace_move_row_pages", offsetof(Functions, row_pages.told)},
    {"headrace_move_checked_row_pages", offsetof(Functions, row_pages.checked)},
    {"headrace_move_small_pages", offsetof(Functions, small_pages.told)},
    {"headrace_move_checked_small_pages", offsetof(Functions, small_pages.checked)},
    {"headrace_move_any_pages", offsetof(Functions, any_pages.told)},
    {"headrace_move_checked_any_pages", offsetof(Functions, any_pages.checked)},
    {"headrace_move_runs", offsetof(Functions, runs)},
    {"headrace_move_few", offsetof(Functions, few)},
    {"headrace_move_one", offsetof(Functions, one)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

constexpr unsigned few_threads = 256;

std::int32_t move_pages(void* kernels, const headrace_move_pages_v1* args, void* stream) {
  if (!are_complete(*args)) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const auto& functions = set.functions_of<Functions>(family);
  const std::uint64_t bytes = page_bytes(*args);
  const bool vectors = is_aligned(args->source, args->flags) && is_aligned(args->target, args->flags) &&
                       bytes % vector_bytes == 0;
  const bool share_tiles = vectors && bytes < tile_bytes;
  const PagesKernel& kernel = !vectors                 ? functions.any_pages
                              : !share_tiles           ? functions.aligned_pages
                              : bytes % row_bytes == 0 ? functions.row_pages
                                                       : functions.small_pages;
  const std::uint64_t tiles = share_tiles ? tiles_of(args->count * bytes) : args->count * tiles_of(bytes);
  return set.launch(kernel.fitting(*args), blocks_for(set, tiles, args->most_multiprocessors), page_threads,
                    *args, stream);
}

std::int32_t move_runs(void* kernels, const headrace_move_runs_v1* args, void* stream) {
  if (args->struct_size < sizeof *args || !can_report(args->done)) return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  return set.launch(set.functions_of<Functions>(family).runs,
                    blocks_for(set, args->count, args->most_multiprocessors), page_threads, *args, stream);
}

/// One small run of whole vectors, whose end is reported by a value: what needs the least of a kernel.
bool is_one_run(const headrace_move_few_v1& args) {
  return args.count == 1 && args.lengths[0] <= one_run_most_bytes &&
         (args.sources[0] | args.targets[0] | args.lengths[0]) % vector_bytes == 0 && args.done.word != 0 &&
         args.done.value != 0;
}

std::int32_t move_few(void* kernels, const headrace_move_few_v1* args, void* stream) {
  const bool reports = can_report(args->done) || args->done.value != 0;
  if (args->struct_size < sizeof *args || args->count > HEADRACE_MOVE_FEW_MOST || !reports)
    return invalid_value;
  const KernelSet& set = KernelSet::of(kernels);
  const auto& functions = set.functions_of<Functions>(family);
  if (is_one_run(*args))
    return set.launch(functions.one, 1, one_run_threads,
                      OneRun{args->sources[0], args->targets[0], args->lengths[0], args->done}, stream);
  return set.launch(functions.few, 1, few_threads, *args, stream);
}

constexpr headrace_gather_scatter_v1 table{
    {sizeof table, HEADRACE_GATHER_SCATTER_FAMILY_VERSION, 0}, move_pages, move_runs, move_few};

}  // namespace

constinit const Family family{HEADRACE_GATHER_SCATTER_FAMILY, &table.family, family_kernels,
                              sizeof(Functions)};

}  // namespace headrace::kernels::gather_scatter
