// SPDX-License-Identifier: Apache-2.0
#include <headrace/tensor.hpp>

#include <gmock/gmock.h>

#include <array>

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

}  // namespace
}  // namespace headrace
