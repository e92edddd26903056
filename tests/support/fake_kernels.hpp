// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels/ for the fake driver: the CPU references of all families under their names, and an
// image to load.
#pragma once

#include "support/fake_cuda.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <cstddef>
#include <string_view>

namespace headrace::cuda {

using CopyFunction = void (*)(void* target, const void* source, std::size_t bytes);

/// Every kernel runs its CPU reference. A kernel that would access forbidden memory ends with
/// illegal_address.
void add_reference_kernels(FakeCuda& fake);
/// The same for one family. Null: its references copy by memcpy.
void add_reference_family(FakeCuda& fake, std::string_view family, CopyFunction copy = nullptr);

/// The library's table over one image, for compute capability 9.0 only (the fake's default GPU).
[[nodiscard]] const headrace_kernels_v1& fake_kernels_table();

}  // namespace headrace::cuda
