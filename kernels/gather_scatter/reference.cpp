// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_scatter/reference.hpp"

namespace headrace::kernels::gather_scatter {
namespace {

using reference::kernel_of;
using reference::PagesMove;

constexpr reference::Kernel references[] = {
    kernel_of<PagesMove>("headrace_move_aligned_pages"),
    kernel_of<PagesMove>("headrace_move_checked_aligned_pages"),
    kernel_of<PagesMove>("headrace_move_row_pages"),
    kernel_of<PagesMove>("headrace_move_checked_row_pages"),
    kernel_of<PagesMove>("headrace_move_small_pages"),
    kernel_of<PagesMove>("headrace_move_checked_small_pages"),
    kernel_of<PagesMove>("headrace_move_any_pages"),
    kernel_of<PagesMove>("headrace_move_checked_any_pages"),
    kernel_of<RunsMove>("headrace_move_runs"),
    kernel_of<FewMove>("headrace_move_few"),
    kernel_of<OneMove>("headrace_move_one"),
};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_GATHER_SCATTER_FAMILY, references};

}  // namespace headrace::kernels::gather_scatter
