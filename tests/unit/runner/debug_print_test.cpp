// SPDX-License-Identifier: Apache-2.0
#include "runner/debug_print.hpp"

#include <headrace/tensor.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(DebugPrintTest, statistics_leave_out_values_that_are_not_finite) {
  const std::array<float, 5> values{1, -3, std::numeric_limits<float>::quiet_NaN(), 8,
                                    std::numeric_limits<float>::infinity()};
  const TensorStatistics statistics = statistics_of({values.data(), DType::float32, {5}, {}, {}});
  EXPECT_EQ(statistics.not_finite, 2U);
  EXPECT_EQ(statistics.least, -3);
  EXPECT_EQ(statistics.most, 8);
  EXPECT_EQ(statistics.mean, 2);
}

TEST(DebugPrintTest, small_floats_have_their_values) {
  const std::array<std::uint16_t, 4> half{0x3C00, 0xC000, 0x7C00, 0x0001};
  EXPECT_EQ(read_element(half.data(), DType::float16, 0), 1);
  EXPECT_EQ(read_element(half.data(), DType::float16, 1), -2);
  EXPECT_TRUE(std::isinf(read_element(half.data(), DType::float16, 2)));
  EXPECT_EQ(read_element(half.data(), DType::float16, 3), std::ldexp(1, -24));
  const std::array<std::uint16_t, 1> bfloat{0xC040};
  EXPECT_EQ(read_element(bfloat.data(), DType::bfloat16, 0), -3);
  const std::array<std::uint8_t, 3> e4m3{0x7E, 0x7F, 0x38};
  EXPECT_EQ(read_element(e4m3.data(), DType::float8_e4m3fn, 0), 448);
  EXPECT_TRUE(std::isnan(read_element(e4m3.data(), DType::float8_e4m3fn, 1)));
  EXPECT_EQ(read_element(e4m3.data(), DType::float8_e4m3fn, 2), 1);
  const std::array<std::uint8_t, 2> e5m2{0x7B, 0x7C};
  EXPECT_EQ(read_element(e5m2.data(), DType::float8_e5m2, 0), 57344);
  EXPECT_TRUE(std::isinf(read_element(e5m2.data(), DType::float8_e5m2, 1)));
}

TEST(DebugPrintTest, every_small_float_is_written_as_it_is_read) {
  for (const auto& [type, count] : {std::pair{DType::float16, 65536},
                                    {DType::bfloat16, 65536},
                                    {DType::float8_e4m3fn, 256},
                                    {DType::float8_e5m2, 256}})
    for (int bits = 0; bits < count; ++bits) {
      std::uint16_t written = 0;
      const double value = read_element(&bits, type, 0);
      write_element(&written, type, 0, value);
      if (std::isnan(value))
        EXPECT_TRUE(std::isnan(read_element(&written, type, 0)));
      else
        ASSERT_EQ(written, bits) << dtype_name(type);
    }
}

TEST(DebugPrintTest, a_value_between_two_is_rounded_and_one_beyond_the_range_is_clamped_or_infinite) {
  std::uint16_t half = 0;
  write_element(&half, DType::float16, 0, 2049);  // halfway between 2048 and 2050: rounds to even
  EXPECT_EQ(read_element(&half, DType::float16, 0), 2048);
  write_element(&half, DType::float16, 0, 65519);
  EXPECT_EQ(read_element(&half, DType::float16, 0), 65504);
  write_element(&half, DType::float16, 0, 1e6);
  EXPECT_TRUE(std::isinf(read_element(&half, DType::float16, 0)));
  std::uint8_t byte = 0;
  write_element(&byte, DType::float8_e4m3fn, 0, 1e6);
  EXPECT_EQ(read_element(&byte, DType::float8_e4m3fn, 0), 448);
  write_element(&byte, DType::uint8, 0, 300);
  EXPECT_EQ(byte, 255);
  std::int64_t whole = 0;
  write_element(&whole, DType::int64, 0, -2.9);
  EXPECT_EQ(whole, -2);
}

}  // namespace
}  // namespace headrace
