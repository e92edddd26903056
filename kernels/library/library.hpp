// SPDX-License-Identifier: Apache-2.0
// What libheadrace_kernels.so exports: one table, with the images of a build and the families of kernels.
#pragma once

#include "kernels/common/family.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>
#include <span>

namespace headrace::kernels {

/// The families, one for each folder of kernels/ with device code. cmake/kernels.cmake writes the list.
extern const std::span<const Family* const> families;

/// The table over the given images, which it does not own. Tests give it images of their own.
[[nodiscard]] headrace_kernels_v1 make_table(const headrace_kernel_image_v1* images, std::uint64_t count);

}  // namespace headrace::kernels
