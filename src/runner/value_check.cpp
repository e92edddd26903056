// SPDX-License-Identifier: Apache-2.0
#include "runner/value_check.hpp"

#include "runner/strides.hpp"

#include <fmt/format.h>

#include <utility>

namespace headrace {
namespace {

/// The position in memory of an element, in elements.
std::int64_t position_of(std::int64_t element, const TensorView& view, const Shape& strides) {
  std::int64_t position = 0;
  for (std::size_t i = view.shape.rank(); i-- > 0; element /= view.shape[i])
    position += element % view.shape[i] * strides[i];
  return position;
}

template <class Integer>
std::optional<Outside> find_in(const TensorView& view, ValueRange range) {
  const auto* const values = static_cast<const Integer*>(view.data);
  const bool contiguous = view.is_contiguous();
  const Shape strides = strides_of(view);
  const std::int64_t count = view.shape.count();
  for (std::int64_t i = 0; i < count; ++i) {
    const Integer value = values[contiguous ? i : position_of(i, view, strides)];
    if (std::cmp_less(value, range.least) || std::cmp_greater(value, range.most))
      return Outside{i, fmt::format("{}", +value)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Outside> find_outside(const TensorView& view, ValueRange range) {
  switch (view.dtype) {
    case DType::int8:
      return find_in<std::int8_t>(view, range);
    case DType::int16:
      return find_in<std::int16_t>(view, range);
    case DType::int32:
      return find_in<std::int32_t>(view, range);
    case DType::int64:
      return find_in<std::int64_t>(view, range);
    case DType::uint8:
      return find_in<std::uint8_t>(view, range);
    case DType::uint16:
      return find_in<std::uint16_t>(view, range);
    case DType::uint32:
      return find_in<std::uint32_t>(view, range);
    case DType::uint64:
      return find_in<std::uint64_t>(view, range);
    default:
      return std::nullopt;
  }
}

}  // namespace headrace
