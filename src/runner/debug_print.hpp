// SPDX-License-Identifier: Apache-2.0
// The output of HEADRACE_MODEL_DEBUG=1 for a model's tensors.
#pragma once

#include <headrace/tensor.hpp>

#include <cstdint>
#include <string>

namespace headrace {

/// Statistics of a tensor in host memory, with its elements as numbers; of complex elements the real parts.
struct TensorStatistics {
  std::uint64_t count = 0, not_finite = 0;
  double least = 0, most = 0, mean = 0;  ///< of the finite elements
};
[[nodiscard]] TensorStatistics statistics_of(const TensorView& view);

/// "float32 [4, 256] strides [256, 1] on cpu: least -3.1, most 2.9, mean 0.002, 0 of 1024 not finite".
[[nodiscard]] std::string describe_tensor(const TensorView& view, const TensorStatistics& statistics);

}  // namespace headrace
