// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_info.hpp"

#include <gmock/gmock.h>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

Result<std::uint64_t> bytes_of(const char* type, const std::vector<std::uint64_t>& shape) {
  return tensor_bytes(*element_type(type), shape);
}

TEST(TensorInfo, TheBytesFollowFromTypeAndShape) {
  EXPECT_EQ(bytes_of("F32", {}).value(), 4U);
  EXPECT_EQ(bytes_of("BF16", {3, 5}).value(), 30U);
  EXPECT_EQ(bytes_of("F6_E2M3", {4}).value(), 3U);
}

TEST(TensorInfo, ATensorOfLengthZeroIsEmptyWhateverItsOtherLengths) {
  EXPECT_EQ(bytes_of("F64", {~std::uint64_t{0}, ~std::uint64_t{0}, 0}).value(), 0U);
}

TEST(TensorInfo, LengthsWhoseProductWrapsAreRefusedWithTheShape) {
  // 2^63 bits times 2 are 0 in 64 bits.
  const auto wrapped = bytes_of("U8", {std::uint64_t{1} << 60, 2});
  ASSERT_FALSE(wrapped.ok());
  EXPECT_THAT(wrapped.error().message, HasSubstr("shape [1152921504606846976, 2] is larger than any memory"));
}

TEST(TensorInfo, ATensorThatEndsInsideAByteIsRefused) {
  EXPECT_THAT(bytes_of("F4", {3}).error().message, HasSubstr("shape [3] of F4 does not fill its last byte"));
}

TEST(TensorInfo, ATypeIsFoundByTheNameOfEachFormat) {
  EXPECT_EQ(element_type_from_npy("<f4"), element_type("F32"));
  EXPECT_EQ(element_type_from_npy(""), nullptr);
  EXPECT_EQ(element_type("Q7"), nullptr);
}

}  // namespace
}  // namespace headrace::formats
