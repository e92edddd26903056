// SPDX-License-Identifier: Apache-2.0
// The scales of the caller's rows, which may lie by row or by column, with any strides.
#pragma once

#include "base/errors.hpp"
#include "moe/strides.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace headrace::moe {

/// How the scales of rows lie. All numbers are bytes.
struct ScaleLayout {
  std::int64_t bytes;                    ///< of one row
  std::int64_t stride;                   ///< from one row to the next
  std::int64_t unit_bytes, unit_stride;  ///< of the parts of a row

  [[nodiscard]] bool is_dense() const { return unit_stride == unit_bytes; }
};

/// From what a caller gives: 0 stands for what lies side by side.
[[nodiscard]] inline ScaleLayout scale_layout(std::int64_t bytes, std::int64_t stride,
                                              std::int64_t unit_bytes, std::int64_t unit_stride) {
  return {bytes, stride_or(stride, bytes), unit_bytes, stride_or(unit_stride, unit_bytes)};
}

[[nodiscard]] inline Result<void> check_scales(std::int64_t bytes, std::int64_t stride,
                                               std::int64_t unit_bytes, std::int64_t unit_stride) {
  if (unit_bytes != 1 && unit_bytes != 2 && unit_bytes != 4 && unit_bytes != 8)
    return make_error(Code::invalid_argument, "scale_unit_bytes is {}, expected 1, 2, 4 or 8", unit_bytes);
  if (bytes % unit_bytes != 0)
    return make_error(Code::invalid_argument,
                      "scale_unit_bytes is {}, and a token has {} bytes of scales: expected a divisor",
                      unit_bytes, bytes);
  if (unit_stride != 0) return {};  // any row stride
  return check_stride("scale_stride", stride, bytes);
}

inline void gather_scales(std::byte* to, const std::byte* row, const ScaleLayout& of) {
  if (of.is_dense()) return static_cast<void>(std::memcpy(to, row, static_cast<std::size_t>(of.bytes)));
  for (std::int64_t at = 0; at < of.bytes; at += of.unit_bytes, row += of.unit_stride)
    std::memcpy(to + at, row, static_cast<std::size_t>(of.unit_bytes));
}
/// Null `from`: zeros.
inline void scatter_scales(const std::byte* from, std::byte* row, const ScaleLayout& of) {
  const std::int64_t unit = of.is_dense() ? of.bytes : of.unit_bytes;
  for (std::int64_t at = 0; at < of.bytes; at += unit, row += of.unit_stride) {
    if (from == nullptr)
      std::memset(row, 0, static_cast<std::size_t>(unit));
    else
      std::memcpy(row, from + at, static_cast<std::size_t>(unit));
  }
}

}  // namespace headrace::moe
