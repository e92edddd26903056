// SPDX-License-Identifier: Apache-2.0
// How NCCL reduces elements of a type, which has fewer types and reductions than headrace::ReduceOp.
#pragma once

#include "vendor/nccl/library.hpp"

#include <headrace/plugin/comm_v1.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::nccl {

struct Reduction {
  DataType type = DataType::int8;
  std::size_t parts = 1;  ///< numbers of this type in an element: 2 of a complex one
  ReduceOp op = ReduceOp::sum;
  bool multiplies = false;  ///< by a factor, before the sum
};

///   errors  not_supported (why), invalid_argument (no such type or reduction)
[[nodiscard]] Result<Reduction> reduction_of(const Library& library, std::int32_t dtype,
                                             std::int32_t reduction);

/// A number of this type, as memory.
[[nodiscard]] std::array<std::byte, 8> scalar_of(DataType type, double value);

}  // namespace headrace::nccl
