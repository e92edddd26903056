// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/coll_elements.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

namespace headrace::cli {
namespace {

struct FloatFormat {
  unsigned exponent_bits, mantissa_bits;
  double largest;
  [[nodiscard]] std::uint64_t bias() const { return (std::uint64_t{1} << (exponent_bits - 1)) - 1; }
  [[nodiscard]] double step() const { return std::ldexp(1.0, -static_cast<int>(mantissa_bits)); }
  [[nodiscard]] double least() const {
    return std::ldexp(1.0, 1 - static_cast<int>(bias()) - static_cast<int>(mantissa_bits));
  }
};

std::optional<FloatFormat> float_format(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return FloatFormat{11, 52, std::numeric_limits<double>::max()};
    case DType::float32:
      return FloatFormat{8, 23, std::numeric_limits<float>::max()};
    case DType::float16:
      return FloatFormat{5, 10, 65504};
    case DType::bfloat16:
      return FloatFormat{8, 7, 3.3895e38};
    case DType::float8_e4m3fn:
      return FloatFormat{4, 3, 448};
    case DType::float8_e5m2:
      return FloatFormat{5, 2, 57344};
    default:
      return std::nullopt;
  }
}

bool has_two_numbers(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

bool is_signed(DType dtype) {
  return dtype == DType::int8 || dtype == DType::int16 || dtype == DType::int32 || dtype == DType::int64;
}

DType number_type_of(DType dtype) {
  if (dtype == DType::complex64) return DType::float32;
  return dtype == DType::complex128 ? DType::float64 : dtype;
}

/// The finalizer of splitmix64.
std::uint64_t scattered(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// A float of either sign from 0.5 to 2.
std::uint64_t float_pattern(const FloatFormat& format, std::uint64_t random) {
  const std::uint64_t sign = random >> 63;
  const std::uint64_t exponent = format.bias() - (random >> 62 & 1);
  const std::uint64_t mantissa = random & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  return (sign << format.exponent_bits | exponent) << format.mantissa_bits | mantissa;
}

/// Calls take(rank) for each rank but the first, whose number begins the reduction.
template <class Take>
void for_others(int ranks, const Take& take) {
  for (int rank = 1; rank < ranks; ++rank) take(rank);
}

}  // namespace

bool reduces(ReduceOp::Kind op, DType dtype) {
  const bool bits = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (float_format(dtype)) return !bits;
  if (has_two_numbers(dtype)) return !bits && op != ReduceOp::min && op != ReduceOp::max;
  return dtype != DType::boolean || (op != ReduceOp::avg && op != ReduceOp::premul_sum);
}

CollElements::CollElements(DType dtype, ReduceOp::Kind op, int ranks, std::uint64_t seed,
                           std::optional<DType> rounded_to)
    : dtype_(dtype),
      number_type_(number_type_of(dtype)),
      number_bytes_(element_bytes(number_type_)),
      numbers_(element_bytes(dtype) / number_bytes_),
      op_(op),
      ranks_(ranks),
      seed_(seed),
      step_([&] {
        const auto format = float_format(rounded_to.value_or(number_type_));
        return format ? format->step() : 0;
      }()) {}

/// The bits of one number.
std::uint64_t CollElements::pattern(int rank, std::size_t number) const {
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
  const std::uint64_t start = scattered(seed_ + static_cast<std::uint64_t>(rank + 1) * odd);
  const std::uint64_t random = scattered(start + number * odd);
  if (const auto format = float_format(number_type_)) return float_pattern(*format, random);
  if (dtype_ == DType::boolean) return random & 1;
  // A mean of a sum that has wrapped around has no meaning.
  if (op_ == ReduceOp::avg) return random % (100 / static_cast<std::uint64_t>(ranks_) + 1);
  return number_bytes_ == sizeof random ? random : random & ((std::uint64_t{1} << 8 * number_bytes_) - 1);
}

double CollElements::value(int rank, std::size_t number) const {
  const std::uint64_t bits = pattern(rank, number);
  return read_element(&bits, number_type_, 0);
}

void CollElements::fill(std::span<std::byte> input, int rank) const {
  for (std::size_t i = 0; i < input.size() / number_bytes_; ++i) {
    const std::uint64_t bits = pattern(rank, i);
    std::memcpy(&input[i * number_bytes_], &bits, number_bytes_);
  }
}

std::uint64_t CollElements::wrong(std::span<const std::byte> output, const ExpectedPart& part) const {
  const std::size_t width = numbers_ * number_bytes_;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < part.count; ++i) {
    const std::byte* const got = output.data() + (part.begin + i) * width;
    const std::size_t index = part.from + i;
    const bool right =
        part.rank == reduction_of_all ? is_reduction(got, index) : is_copy(got, part.rank, index);
    if (!right) ++wrong;
  }
  return wrong;
}

bool CollElements::is_copy(const std::byte* got, int rank, std::size_t index) const {
  for (std::size_t i = 0; i < numbers_; ++i) {
    const std::uint64_t bits = pattern(rank, index * numbers_ + i);
    if (std::memcmp(got + i * number_bytes_, &bits, number_bytes_) != 0) return false;
  }
  return true;
}

bool CollElements::is_reduction(const std::byte* got, std::size_t index) const {
  if (has_two_numbers(dtype_) && op_ == ReduceOp::product) return is_complex_product(got, index);
  if (float_format(number_type_)) {
    for (std::size_t i = 0; i < numbers_; ++i)
      if (!is_real_reduction(got + i * number_bytes_, index * numbers_ + i)) return false;
    return true;
  }
  const std::uint64_t bits = dtype_ == DType::boolean ? reduced_bool(index) : reduced_integer(index);
  return std::memcmp(got, &bits, number_bytes_) == 0;
}

/// Sums may differ by half a step for each rank, relative to the sum of the absolute values.
bool CollElements::is_real_reduction(const std::byte* got, std::size_t number) const {
  const FloatFormat format = *float_format(number_type_);
  const double roundings = static_cast<double>(ranks_) * step_ / 2;
  const double first = value(0, number);
  double result = first, weight = std::abs(first), peak = std::max(1.0, weight);
  for_others(ranks_, [&](int rank) {
    const double next = value(rank, number);
    weight += std::abs(next);
    peak *= std::max(1.0, std::abs(next));
    if (op_ == ReduceOp::product)
      result *= next;
    else if (op_ == ReduceOp::min)
      result = std::min(result, next);
    else if (op_ == ReduceOp::max)
      result = std::max(result, next);
    else
      result += next;
  });
  double allowed = 0;
  if (op_ == ReduceOp::product) {
    if (peak > format.largest) return true;  // a partial product overflows, in some order of the ranks
    allowed = roundings * (std::abs(result) + format.least() * peak);
  } else if (op_ != ReduceOp::min && op_ != ReduceOp::max) {
    const double scale = op_ == ReduceOp::avg          ? 1.0 / ranks_
                         : op_ == ReduceOp::premul_sum ? premul_factor
                                                       : 1;
    result *= scale;
    allowed = roundings * weight * scale;
  }
  return std::abs(read_element(got, number_type_, 0) - result) <= allowed;  // false for NaN
}

bool CollElements::is_complex_product(const std::byte* got, std::size_t index) const {
  std::complex<double> result = 1;
  double weight = 1;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::complex<double> next{value(rank, 2 * index), value(rank, 2 * index + 1)};
    result *= next;
    weight *= std::abs(next);
  }
  const double allowed = 4 * ranks_ * step_ * weight;
  return std::abs(read_element(got, number_type_, 0) - result.real()) <= allowed &&
         std::abs(read_element(got + number_bytes_, number_type_, 0) - result.imag()) <= allowed;
}

std::uint64_t CollElements::reduced_bool(std::size_t index) const {
  std::uint64_t result = pattern(0, index);
  for_others(ranks_, [&](int rank) {
    const std::uint64_t next = pattern(rank, index);
    if (op_ == ReduceOp::bxor)
      result ^= next;
    else if (op_ == ReduceOp::sum || op_ == ReduceOp::max || op_ == ReduceOp::bor)
      result |= next;
    else
      result &= next;
  });
  return result;
}

std::uint64_t CollElements::reduced_integer(std::size_t index) const {
  const unsigned unused = 64 - 8 * static_cast<unsigned>(number_bytes_);
  // With the sign of the element, so that min and max may compare.
  const auto element = [&](int rank) {
    const std::uint64_t bits = pattern(rank, index) << unused;
    return is_signed(dtype_) ? static_cast<std::uint64_t>(static_cast<std::int64_t>(bits) >> unused)
                             : bits >> unused;
  };
  const auto less = [&](std::uint64_t a, std::uint64_t b) {
    return is_signed(dtype_) ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  };
  std::uint64_t result = element(0);
  for_others(ranks_, [&](int rank) {
    const std::uint64_t next = element(rank);
    switch (op_) {
      case ReduceOp::product:
        result *= next;
        break;
      case ReduceOp::min:
        result = less(next, result) ? next : result;
        break;
      case ReduceOp::max:
        result = less(result, next) ? next : result;
        break;
      case ReduceOp::band:
        result &= next;
        break;
      case ReduceOp::bor:
        result |= next;
        break;
      case ReduceOp::bxor:
        result ^= next;
        break;
      default:
        result += next;
    }
  });
  if (op_ == ReduceOp::avg) result /= static_cast<std::uint64_t>(ranks_);
  if (op_ == ReduceOp::premul_sum) result *= static_cast<std::uint64_t>(premul_factor);
  return result;
}

}  // namespace headrace::cli
