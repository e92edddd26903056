// SPDX-License-Identifier: Apache-2.0
#include "kernels/library/library.hpp"

// Written by cmake/kernels.cmake: the cubins of this build.
extern "C" const headrace_kernel_image_v1 headrace_kernel_images[];
extern "C" const std::uint64_t headrace_kernel_image_count;

extern "C" __attribute__((visibility("default"))) const headrace_kernels_v1* headrace_kernels_v1_table() {
  static const headrace_kernels_v1 table =
      headrace::kernels::make_table(headrace_kernel_images, headrace_kernel_image_count);
  return &table;
}
