// SPDX-License-Identifier: Apache-2.0
// The strides of a view's elements.
#pragma once

#include <headrace/tensor.hpp>

#include <algorithm>
#include <cstdint>

namespace headrace {

/// In elements, one for each dimension: the view's own, or those without gaps if it has none.
[[nodiscard]] inline Shape strides_of(const TensorView& view) noexcept {
  if (!view.strides.empty()) return view.strides;
  Shape strides = view.shape;
  std::int64_t stride = 1;
  for (std::size_t i = view.shape.rank(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(view.shape[i], 1);
  }
  return strides;
}

}  // namespace headrace
