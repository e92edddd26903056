// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduction.hpp"
#include "base/small_float.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <utility>
#include <vector>

namespace headrace::collectives {
namespace {

using testing::HasSubstr;
using Kind = ReduceOp::Kind;

constexpr std::array all_kinds{Kind::sum,  Kind::product, Kind::min,  Kind::max,       Kind::avg,
                               Kind::band, Kind::bor,     Kind::bxor, Kind::premul_sum};

template <class Format>
void expect_as_elements(DType dtype, float value) {
  typename Format::Stored expected{};
  write_element(&expected, dtype, 0, value);
  EXPECT_EQ(Format::store(value), expected) << dtype_name(dtype) << " of " << value;
}

template <class Format>
void expect_every_value_is_read(DType dtype) {
  for (unsigned bits = 0; bits < 1U << (8 * sizeof(typename Format::Stored)); ++bits) {
    const auto stored = static_cast<typename Format::Stored>(bits);
    const double expected = read_element(&stored, dtype, 0);
    const float loaded = Format::load(stored);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(loaded)) << dtype_name(dtype) << " " << bits;
    } else {
      EXPECT_EQ(loaded, expected) << dtype_name(dtype) << " " << bits;
      EXPECT_EQ(std::signbit(loaded), std::signbit(expected)) << dtype_name(dtype) << " " << bits;
      EXPECT_EQ(Format::store(loaded), stored) << dtype_name(dtype) << " " << bits;
    }
  }
  // Values between two, at the ties and beyond the range.
  for (std::uint32_t bits = 0; bits < 0x7f900000; bits += 0x2f1d7) {
    expect_as_elements<Format>(dtype, std::bit_cast<float>(bits & ~0x3ffU));
    expect_as_elements<Format>(dtype, -std::bit_cast<float>(bits));
  }
}

TEST(SmallFloatTest, every_small_float_is_read_and_rounded_as_an_element_is) {
  expect_every_value_is_read<Float16>(DType::float16);
  expect_every_value_is_read<BFloat16>(DType::bfloat16);
  expect_every_value_is_read<Float8E4M3>(DType::float8_e4m3fn);
  expect_every_value_is_read<Float8E5M2>(DType::float8_e5m2);
}

bool is_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
         dtype == DType::bfloat16 || dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2;
}
bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

bool has_meaning(Kind kind, DType dtype) {
  const bool bits = kind == Kind::band || kind == Kind::bor || kind == Kind::bxor;
  if (is_float(dtype)) return !bits;
  if (is_complex(dtype)) return !bits && kind != Kind::min && kind != Kind::max;
  return dtype != DType::boolean || (kind != Kind::avg && kind != Kind::premul_sum);
}

/// Small values, which every type holds exactly, with their sums and products of three.
double value_of(std::size_t rank, std::size_t i, DType dtype) {
  if (dtype == DType::boolean) return (rank + i) % 3 == 0 ? 1 : 0;
  return static_cast<double>((rank * 3 + i) % 5 + (dtype == DType::uint8 ? 0 : 1));
}

double combine(Kind kind, double a, double b) {
  const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
  switch (kind) {
    case Kind::product:
      return a * b;
    case Kind::min:
      return std::min(a, b);
    case Kind::max:
      return std::max(a, b);
    case Kind::band:
      return static_cast<double>(x & y);
    case Kind::bor:
      return static_cast<double>(x | y);
    case Kind::bxor:
      return static_cast<double>(x ^ y);
    default:
      return a + b;
  }
}

double expected_of(Kind kind, DType dtype, std::size_t ranks, std::size_t i) {
  const double factor = kind == Kind::premul_sum ? 2 : 1;
  double result = factor * value_of(0, i, dtype);
  for (std::size_t rank = 1; rank < ranks; ++rank)
    result = combine(kind, result, factor * value_of(rank, i, dtype));
  if (dtype == DType::boolean && kind == Kind::sum) result = std::min(result, 1.0);
  if (kind == Kind::avg) result /= static_cast<double>(ranks);
  return result;
}

TEST(ReductionTest, every_operation_of_every_type_has_the_value_of_plain_arithmetic) {
  constexpr std::size_t ranks = 3, count = 1037;
  for (std::size_t type = 0; type < dtype_count; ++type) {
    const auto dtype = static_cast<DType>(type);
    const std::size_t width = element_bytes(dtype);
    std::vector<std::vector<std::byte>> inputs(ranks, std::vector<std::byte>(count * width));
    std::vector<const std::byte*> pointers;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < count; ++i)
        write_element(inputs[rank].data(), dtype, static_cast<std::int64_t>(i), value_of(rank, i, dtype));
      pointers.push_back(inputs[rank].data());
    }
    for (const Kind kind : all_kinds) {
      const auto found = Reduction::find({kind, 2}, dtype, ranks);
      ASSERT_EQ(found.ok(), has_meaning(kind, dtype)) << reduce_op_name(kind) << " " << dtype_name(dtype);
      if (!found) continue;
      std::vector<std::byte> output(count * width);
      (*found)(output.data(), pointers, count);
      for (std::size_t i = 0; i < count; ++i) {
        std::array<std::byte, 16> expected{};
        write_element(expected.data(), dtype, 0, expected_of(kind, dtype, ranks, i));
        ASSERT_EQ(read_element(output.data(), dtype, static_cast<std::int64_t>(i)),
                  read_element(expected.data(), dtype, 0))
            << reduce_op_name(kind) << " " << dtype_name(dtype) << " " << i;
      }
    }
  }
}

TEST(ReductionTest, results_do_not_depend_on_the_instructions_nor_on_the_place_of_the_output) {
  constexpr std::size_t ranks = 3, count = 3001;
  for (std::size_t type = 0; type < dtype_count; ++type) {
    const auto dtype = static_cast<DType>(type);
    const std::size_t width = element_bytes(dtype);
    std::vector<std::vector<std::byte>> inputs(ranks, std::vector<std::byte>(count * width));
    std::uint32_t random = 12345;
    for (auto& input : inputs) {
      for (std::size_t i = 0; i < count; ++i) {
        random = random * 1664525 + 1013904223;
        const double value =
            dtype == DType::boolean ? random >> 31 : static_cast<double>(random >> 16) / 4096 - 8;
        write_element(input.data(), dtype, static_cast<std::int64_t>(i), value);
      }
    }
    for (const Kind kind : all_kinds) {
      if (!has_meaning(kind, dtype)) continue;
      const auto run = [&](Instructions instructions, bool in_place) {
        auto copies = inputs;
        std::vector<const std::byte*> pointers;
        for (const auto& input : copies) pointers.push_back(input.data());
        std::vector<std::byte> output(count * width);
        std::byte* const to = in_place ? copies[1].data() : output.data();
        Reduction::find({kind, 3}, dtype, ranks, instructions).value()(to, pointers, count);
        return in_place ? copies[1] : output;
      };
      const auto plain = run(Instructions::plain, false);
      const Instructions best = best_instructions();
      EXPECT_EQ(run(best, false), plain) << reduce_op_name(kind) << " " << dtype_name(dtype);
      EXPECT_EQ(run(best, true), plain) << reduce_op_name(kind) << " " << dtype_name(dtype);
      if (best == Instructions::avx512) {
        EXPECT_EQ(run(Instructions::avx2, false), plain) << reduce_op_name(kind) << " " << dtype_name(dtype);
      }
    }
  }
}

TEST(ReductionTest, small_floats_are_added_in_float32_and_rounded_once) {
  // 1 + 2^-11 + 2^-11 in float16: each addition alone would be rounded away.
  const float tiny = std::ldexp(1.0F, -11);
  std::array<std::uint16_t, 3> inputs{};
  write_element(&inputs[0], DType::float16, 0, 1);
  write_element(&inputs[1], DType::float16, 0, tiny);
  write_element(&inputs[2], DType::float16, 0, tiny);
  std::array<const std::byte*, 3> pointers{};
  for (std::size_t i = 0; i < 3; ++i) pointers[i] = reinterpret_cast<const std::byte*>(&inputs[i]);
  std::uint16_t output = 0;
  Reduction::find(Kind::sum, DType::float16, 3).value()(reinterpret_cast<std::byte*>(&output), pointers, 1);
  EXPECT_EQ(read_element(&output, DType::float16, 0), 1 + std::ldexp(1.0, -10));
}

TEST(ReductionTest, complex_numbers_multiply_and_a_nan_is_the_minimum) {
  using Number = std::complex<double>;
  const Number a{1, 2}, b{3, -4};
  std::array<const std::byte*, 2> numbers{reinterpret_cast<const std::byte*>(&a),
                                          reinterpret_cast<const std::byte*>(&b)};
  Number product;
  Reduction::find(Kind::product, DType::complex128, 2)
      .value()(reinterpret_cast<std::byte*>(&product), numbers, 1);
  EXPECT_EQ(product, a * b);
  const float nan = std::nanf(""), one = 1;
  for (const Kind kind : {Kind::min, Kind::max}) {
    const Reduction reduction = Reduction::find(kind, DType::float32, 2).value();
    for (const auto& [x, y] : {std::pair{&nan, &one}, std::pair{&one, &nan}}) {
      std::array<const std::byte*, 2> pair{reinterpret_cast<const std::byte*>(x),
                                           reinterpret_cast<const std::byte*>(y)};
      float result = 0;
      reduction(reinterpret_cast<std::byte*>(&result), pair, 1);
      EXPECT_TRUE(std::isnan(result));
    }
  }
}

TEST(ReductionTest, integer_sums_wrap_around_and_averages_drop_the_fraction) {
  const std::int8_t a = 100, b = 100;
  std::array<const std::byte*, 2> inputs{reinterpret_cast<const std::byte*>(&a),
                                         reinterpret_cast<const std::byte*>(&b)};
  std::int8_t sum = 0;
  Reduction::find(Kind::sum, DType::int8, 2).value()(reinterpret_cast<std::byte*>(&sum), inputs, 1);
  EXPECT_EQ(sum, -56);
  const std::int32_t c = -3, d = -4;
  std::array<const std::byte*, 2> others{reinterpret_cast<const std::byte*>(&c),
                                         reinterpret_cast<const std::byte*>(&d)};
  std::int32_t average = 0;
  Reduction::find(Kind::avg, DType::int32, 2).value()(reinterpret_cast<std::byte*>(&average), others, 1);
  EXPECT_EQ(average, -3);
}

TEST(ReductionTest, an_operation_without_meaning_is_refused_with_its_type) {
  EXPECT_THAT(Reduction::find(Kind::band, DType::float32, 2).error().message,
              HasSubstr("band has no meaning for float32"));
  EXPECT_EQ(Reduction::find(Kind::max, DType::complex64, 2).code(), Code::invalid_argument);
  EXPECT_EQ(Reduction::find({Kind::premul_sum, 0.5}, DType::int32, 2).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::collectives
