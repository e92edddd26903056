// SPDX-License-Identifier: Apache-2.0
#include "runner/debug_print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace headrace {
namespace {

template <class Number>
Number at(const void* data, std::int64_t index) {
  Number value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(sizeof value),
              sizeof value);
  return value;
}

/// A small float of `exponent` and `mantissa` bits. Those with infinities keep the largest exponent for them.
double small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool infinities) {
  const unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
  const unsigned exponent = (bits >> mantissa_bits) & ((1U << exponent_bits) - 1);
  const double sign = ((bits >> (mantissa_bits + exponent_bits)) & 1) != 0 ? -1 : 1;
  const unsigned largest = (1U << exponent_bits) - 1;
  const int bias = static_cast<int>(largest >> 1);
  if (exponent == largest && infinities)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == largest && mantissa == (1U << mantissa_bits) - 1)
    return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign *
         std::ldexp((1U << mantissa_bits) + mantissa, static_cast<int>(exponent) - bias - mantissa_bits);
}

}  // namespace

double element_at(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::float32:
      return at<float>(data, index);
    case DType::float64:
      return at<double>(data, index);
    case DType::float16:
      return small_float(at<std::uint16_t>(data, index), 5, 10, true);
    case DType::bfloat16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(at<std::uint16_t>(data, index)) << 16);
    case DType::int8:
      return at<std::int8_t>(data, index);
    case DType::int16:
      return at<std::int16_t>(data, index);
    case DType::int32:
      return at<std::int32_t>(data, index);
    case DType::int64:
      return static_cast<double>(at<std::int64_t>(data, index));
    case DType::uint8:
    case DType::boolean:
      return at<std::uint8_t>(data, index);
    case DType::uint16:
      return at<std::uint16_t>(data, index);
    case DType::uint32:
      return at<std::uint32_t>(data, index);
    case DType::uint64:
      return static_cast<double>(at<std::uint64_t>(data, index));
    case DType::complex64:
      return at<float>(data, 2 * index);
    case DType::complex128:
      return at<double>(data, 2 * index);
    case DType::float8_e4m3fn:
      return small_float(at<std::uint8_t>(data, index), 4, 3, false);
    case DType::float8_e5m2:
      return small_float(at<std::uint8_t>(data, index), 5, 2, true);
  }
  return 0;
}

TensorStatistics statistics_of(const TensorView& view) {
  TensorStatistics statistics;
  const auto copy = Tensor::copy_of(view);  // row-major, whatever the strides
  if (!copy) return statistics;
  statistics.count = static_cast<std::uint64_t>(view.shape.count());
  double sum = 0;
  std::uint64_t finite = 0;
  for (std::int64_t i = 0; i < view.shape.count(); ++i) {
    const double value = element_at(copy->data(), view.dtype, i);
    if (!std::isfinite(value)) {
      ++statistics.not_finite;
      continue;
    }
    statistics.least = finite == 0 ? value : std::min(statistics.least, value);
    statistics.most = finite == 0 ? value : std::max(statistics.most, value);
    sum += value;
    ++finite;
  }
  if (finite > 0) statistics.mean = sum / static_cast<double>(finite);
  return statistics;
}

std::string describe_tensor(const TensorView& view, const TensorStatistics& statistics) {
  Shape strides = view.strides;
  if (strides.empty() && !view.shape.empty()) {
    strides = view.shape;
    std::int64_t stride = 1;
    for (std::size_t i = view.shape.rank(); i-- > 0;) {
      strides[i] = stride;
      stride *= std::max<std::int64_t>(view.shape[i], 1);
    }
  }
  return fmt::format("{} {} strides {} on {}: least {:.6g}, most {:.6g}, mean {:.6g}, {} of {} not finite",
                     dtype_name(view.dtype), shape_text(view.shape), shape_text(strides),
                     device_text(view.device), statistics.least, statistics.most, statistics.mean,
                     statistics.not_finite, statistics.count);
}

}  // namespace headrace
