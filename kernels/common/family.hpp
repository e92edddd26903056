// SPDX-License-Identifier: Apache-2.0
// What a folder of kernels/ gives to the library. The build lists the families by their folders; nothing here
// names one.
#pragma once

#include <headrace/plugin/kernels_v1.h>

#include <cstddef>
#include <span>

namespace headrace::kernels {

/// A kernel of a family, and the offset of its function in the family's struct of functions.
struct FamilyKernel {
  const char* name;
  std::size_t offset;
};

/// Constant: `x.hpp` of a family's folder x declares it as `headrace::kernels::x::family`.
struct Family {
  const char* name;                        ///< as in its public header
  const headrace_kernel_family_v1* table;  ///< the first member of its table
  std::span<const FamilyKernel> kernels;
  std::size_t functions_bytes;  ///< of its struct of functions, which consists of `void*` members
};

}  // namespace headrace::kernels
