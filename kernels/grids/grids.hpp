// SPDX-License-Identifier: Apache-2.0
// The family of kernels that move pages which are grids of runs.
#pragma once

#include "kernels/common/family.hpp"
#include "kernels/grids/run_grid.cuh"

#include <headrace/plugin/kernels/grids_v1.h>

#include <optional>

namespace headrace::kernels::grids {

extern const Family family;

/// What kernels are given for a grid. None if the dimensions are wrong, the runs are too many or fewer than
/// two, or their length does not fit the page's.
[[nodiscard]] std::optional<RunGrid> run_grid(const headrace_move_grids_v1& args);

}  // namespace headrace::kernels::grids
