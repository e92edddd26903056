// SPDX-License-Identifier: Apache-2.0
// Element types: names, widths, elements as numbers, numbers as elements.
#include <headrace/tensor.hpp>

#include "base/errors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace headrace {
namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t bytes;
};
// In the order of DType.
constexpr std::array<DTypeRow, dtype_count> dtype_rows{{
    {"float32", 4},
    {"float64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
}};

std::size_t dtype_index(DType dtype) { return static_cast<std::size_t>(dtype) % dtype_count; }

}  // namespace

std::string_view dtype_name(DType dtype) noexcept { return dtype_rows[dtype_index(dtype)].name; }

std::size_t element_bytes(DType dtype) noexcept { return dtype_rows[dtype_index(dtype)].bytes; }

Result<DType> dtype_from_name(std::string_view name) {
  constexpr std::string_view prefix = "torch.";
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  std::string known;
  for (std::size_t i = 0; i < dtype_rows.size(); ++i) {
    if (dtype_rows[i].name == name) return static_cast<DType>(i);
    known.append(i == 0 ? "" : ", ").append(dtype_rows[i].name);
  }
  return make_error(Code::invalid_argument, "there is no element type \"{}\"; the types are {}", name, known);
}

namespace {

template <class Number>
Number at(const void* data, std::int64_t index) {
  Number value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(sizeof value),
              sizeof value);
  return value;
}

/// A small float with `exponent_bits` and `mantissa_bits`. Types with infinities use the largest exponent for
/// them.
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

double read_element(const void* data, DType dtype, std::int64_t index) noexcept {
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

namespace {

template <class Number>
void put(void* data, std::int64_t index, Number value) {
  std::memcpy(static_cast<std::byte*>(data) + index * static_cast<std::int64_t>(sizeof value), &value,
              sizeof value);
}

template <class Integer>
Integer to_integer(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<Integer>::min()))
    return std::numeric_limits<Integer>::min();
  if (value >= static_cast<double>(std::numeric_limits<Integer>::max()))
    return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(value);
}

/// The bits of the nearest small float, ties to even. A number that is too large becomes infinity, or the
/// largest number if the type has no infinity.
unsigned to_small_float(double value, int exponent_bits, int mantissa_bits, bool infinities) {
  const unsigned sign = std::signbit(value) ? 1U << (exponent_bits + mantissa_bits) : 0;
  const unsigned all_exponent = ((1U << exponent_bits) - 1) << mantissa_bits;
  const unsigned all_mantissa = (1U << mantissa_bits) - 1;
  if (std::isnan(value)) return sign | all_exponent | (infinities ? 1U << (mantissa_bits - 1) : all_mantissa);
  const unsigned too_large = infinities ? all_exponent : all_exponent | (all_mantissa - 1);
  const double size = std::abs(value);
  if (std::isinf(size)) return sign | too_large;
  if (size == 0) return sign;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  // In units of the last bit, so that nearbyint rounds as the type does.
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(size, mantissa_bits - exponent)));
  const unsigned hidden = 1U << mantissa_bits;
  const unsigned bits =
      units < hidden ? units : (static_cast<unsigned>(exponent + bias - 1) << mantissa_bits) + units;
  return sign | std::min(bits, too_large);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

void write_element(void* data, DType dtype, std::int64_t index, double value) noexcept {
  switch (dtype) {
    case DType::float32:
      return put(data, index, static_cast<float>(value));
    case DType::float64:
      return put(data, index, value);
    case DType::float16:
      return put(data, index, static_cast<std::uint16_t>(to_small_float(value, 5, 10, true)));
    case DType::bfloat16:
      return put(data, index, to_bfloat16(static_cast<float>(value)));
    case DType::int8:
      return put(data, index, to_integer<std::int8_t>(value));
    case DType::int16:
      return put(data, index, to_integer<std::int16_t>(value));
    case DType::int32:
      return put(data, index, to_integer<std::int32_t>(value));
    case DType::int64:
      return put(data, index, to_integer<std::int64_t>(value));
    case DType::uint8:
      return put(data, index, to_integer<std::uint8_t>(value));
    case DType::uint16:
      return put(data, index, to_integer<std::uint16_t>(value));
    case DType::uint32:
      return put(data, index, to_integer<std::uint32_t>(value));
    case DType::uint64:
      return put(data, index, to_integer<std::uint64_t>(value));
    case DType::boolean:
      return put(data, index, static_cast<std::uint8_t>(value != 0 ? 1 : 0));
    case DType::complex64:
      put(data, 2 * index, static_cast<float>(value));
      return put(data, 2 * index + 1, 0.0F);
    case DType::complex128:
      put(data, 2 * index, value);
      return put(data, 2 * index + 1, 0.0);
    case DType::float8_e4m3fn:
      return put(data, index, static_cast<std::uint8_t>(to_small_float(value, 4, 3, false)));
    case DType::float8_e5m2:
      return put(data, index, static_cast<std::uint8_t>(to_small_float(value, 5, 2, true)));
  }
}

}  // namespace headrace
