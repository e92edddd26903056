// SPDX-License-Identifier: Apache-2.0
// The host's half of the kernels that move pages which are grids of runs.
#pragma once

#include "kernels/grids/run_grid.cuh"

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>
#include <optional>

namespace headrace::kernels {

/// What kernels are told; none if that is no grid: its dimensions, its length against the page's, too many
/// runs.
[[nodiscard]] std::optional<RunGrid> run_grid(const headrace_move_grids_v1& args);

// The entry of the table.
std::int32_t move_grids(void* kernels, const headrace_move_grids_v1* args, void* stream);

}  // namespace headrace::kernels
