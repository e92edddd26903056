// SPDX-License-Identifier: Apache-2.0
// What libheadrace_kernels.so exports: the launchers of this folder behind one table, with the images of a
// build.
#pragma once

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>

namespace headrace::kernels {

/// The table over the given images, which it does not own. Tests give it images of their own.
[[nodiscard]] headrace_kernels_v1 make_table(const headrace_kernel_image_v1* images, std::uint64_t count);

}  // namespace headrace::kernels
