// SPDX-License-Identifier: Apache-2.0
#include <headrace/tensor.hpp>

#include "runner/debug_print.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TensorTest, each_type_has_a_name_and_a_width) {
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(type)).value(), type);
  }
  EXPECT_EQ(dtype_from_name("torch.bfloat16").value(), DType::bfloat16);
  EXPECT_EQ(element_bytes(DType::complex128), 16U);
  EXPECT_THAT(dtype_from_name("float33").error().message, HasSubstr("float32, float64"));
}

TEST(TensorTest, zeros_gives_zeroed_aligned_memory) {
  const auto tensor = Tensor::zeros(DType::float64, {3, 5});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor->data()) % 64, 0U);
  for (const double element : tensor->elements<double>()) EXPECT_EQ(element, 0);
  EXPECT_EQ(tensor->bytes(), 120U);
  EXPECT_TRUE(Tensor::zeros(DType::float32, {0, 4}));
  EXPECT_EQ(Tensor::zeros(DType::float32, {-1}).code(), Code::invalid_argument);
  EXPECT_EQ(Tensor::zeros(DType::float32, {std::int64_t{1} << 40, std::int64_t{1} << 40}).code(),
            Code::invalid_argument);
}

TEST(TensorTest, a_copy_is_row_major_whatever_the_strides_were) {
  const std::array<float, 6> values{1, 2, 3, 4, 5, 6};
  const TensorView columns{values.data(), DType::float32, {3, 2}, {1, 3}, {}};
  EXPECT_FALSE(columns.is_contiguous());
  const auto copy = Tensor::copy_of(columns);
  ASSERT_TRUE(copy);
  EXPECT_THAT(copy->elements<float>(), ElementsAre(1, 4, 2, 5, 3, 6));
  const TensorView backwards{values.data() + 5, DType::float32, {6}, {-1}, {}};
  EXPECT_THAT(Tensor::copy_of(backwards)->elements<float>(), ElementsAre(6, 5, 4, 3, 2, 1));
}

TEST(TensorTest, a_tensor_frees_its_memory_once) {
  int freed = 0;
  const auto free_it = [](void* count) { ++*static_cast<int*>(count); };
  {
    Tensor one({}, &freed, free_it);
    Tensor two = std::move(one);
    one = Tensor({}, &freed, free_it);
    one = std::move(two);
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(freed, 2);
}

TEST(TensorTest, statistics_leave_out_values_that_are_not_finite) {
  const std::array<float, 5> values{1, -3, std::numeric_limits<float>::quiet_NaN(), 8,
                                    std::numeric_limits<float>::infinity()};
  const TensorStatistics statistics = statistics_of({values.data(), DType::float32, {5}, {}, {}});
  EXPECT_EQ(statistics.not_finite, 2U);
  EXPECT_EQ(statistics.least, -3);
  EXPECT_EQ(statistics.most, 8);
  EXPECT_EQ(statistics.mean, 2);
}

TEST(TensorTest, small_floats_have_their_values) {
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

TEST(TensorTest, every_small_float_is_written_as_it_is_read) {
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

TEST(TensorTest, a_value_between_two_is_rounded_and_one_beyond_the_range_is_clamped_or_infinite) {
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
