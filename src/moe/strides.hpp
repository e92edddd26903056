// SPDX-License-Identifier: Apache-2.0
// Rows of the caller, which may have gaps between them.
#pragma once

#include "base/errors.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headrace::moe {

/// The bytes from one row to the next; 0 was given for rows that lie side by side.
[[nodiscard]] inline std::int64_t stride_or(std::int64_t stride, std::int64_t row_bytes) {
  return stride == 0 ? row_bytes : stride;
}

[[nodiscard]] inline const std::byte* row_at(const void* rows, std::int64_t stride, std::uint64_t row) {
  return static_cast<const std::byte*>(rows) + stride * static_cast<std::int64_t>(row);
}

[[nodiscard]] inline Result<void> check_stride(std::string_view what, std::int64_t stride,
                                               std::int64_t row_bytes) {
  if (stride == 0 || stride >= row_bytes) return {};
  return make_error(Code::invalid_argument, "{} is {}, and a row has {} bytes: expected 0, or at least that",
                    what, stride, row_bytes);
}

/// Looked at in the call: another thread may dispatch with the same routing until that has begun.
[[nodiscard]] inline Result<void> check_row_count(std::int64_t row_count, std::uint64_t given) {
  if (row_count < 0 || static_cast<std::uint64_t>(row_count) == given) return {};
  return make_error(Code::invalid_argument, "out has {} rows, expected one for each of {} tokens", row_count,
                    given);
}

}  // namespace headrace::moe
