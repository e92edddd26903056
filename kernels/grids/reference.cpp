// SPDX-License-Identifier: Apache-2.0
#include "kernels/grids/reference.hpp"

namespace headrace::kernels::grids {
namespace {

using reference::kernel_of;

constexpr reference::Kernel references[] = {
    kernel_of<GridsMove>("headrace_move_grid_tiles"),
    kernel_of<GridsMove>("headrace_move_checked_grid_tiles"),
    kernel_of<GridsMove>("headrace_move_grid_small"),
    kernel_of<GridsMove>("headrace_move_checked_grid_small"),
    kernel_of<GridsMove>("headrace_move_grid_aligned"),
    kernel_of<GridsMove>("headrace_move_checked_grid_aligned"),
    kernel_of<GridsMove>("headrace_move_grid_any"),
    kernel_of<GridsMove>("headrace_move_checked_grid_any"),
};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_GRIDS_FAMILY, references};

}  // namespace headrace::kernels::grids
