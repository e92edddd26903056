// SPDX-License-Identifier: Apache-2.0
// The host's half of the kernels that move pages: which kernel, how many blocks.
#pragma once

#include "kernels/launch.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>

namespace headrace::kernels {

// As in gather_scatter.cuh.
inline constexpr std::uint64_t vector_bytes = 16;
inline constexpr std::uint64_t row_bytes = 512;
inline constexpr std::uint64_t tile_bytes = 4096;

// One block of this size fills a multiprocessor's load queues, and blocks go to multiprocessors one by one:
// so a budget of multiprocessors is a number of blocks.
inline constexpr unsigned page_threads = 512;

/// Whether all pages of a side begin where vectors may.
[[nodiscard]] bool is_aligned(const headrace_move_side_v1& side, std::uint32_t flags);
/// As many blocks as there is work for, within the budget.
[[nodiscard]] std::uint64_t blocks_for(const KernelSet& set, std::uint64_t warps,
                                       std::uint32_t most_multiprocessors);
/// Whether what is told at the end, and what is checked before, has its place.
[[nodiscard]] bool are_complete(const headrace_move_pages_v1& args);

// The entries of the table.
std::int32_t move_pages(void* kernels, const headrace_move_pages_v1* args, void* stream);
std::int32_t move_parts(void* kernels, const headrace_move_parts_v1* args, void* stream);
std::int32_t move_few(void* kernels, const headrace_move_few_v1* args, void* stream);

}  // namespace headrace::kernels
