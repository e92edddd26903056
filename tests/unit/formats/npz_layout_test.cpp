// SPDX-License-Identifier: Apache-2.0
#include "formats/npz_layout.hpp"

#include "formats/npz.hpp"
#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

TEST(NpzLayout, AnArchiveThatItLaysOutIsReadBack) {
  const std::vector<TensorInfo> tensors{named_tensor("one", "F16", {2, 2}), named_tensor("none", "I32", {0}),
                                        named_tensor("two", "BOOL", {5})};
  const auto layout = NpzLayout::plan(tensors);
  ASSERT_TRUE(layout.ok());
  std::vector<std::byte> bytes(layout->file_bytes());
  for (std::size_t t = 0; t < tensors.size(); ++t)
    for (std::uint64_t i = 0; i < tensors[t].bytes; ++i)
      bytes[layout->offsets()[t] + i] = static_cast<std::byte>(16 * t + i);
  layout->finish(bytes);
  const auto arrays = read_npz(bytes);
  ASSERT_TRUE(arrays.ok()) << arrays.error().message;
  ASSERT_EQ(arrays->size(), 3U);
  EXPECT_EQ(arrays->at(2).info.name, "two");
  EXPECT_EQ(arrays->at(2).bytes[4], static_cast<std::byte>(36));
  EXPECT_EQ(arrays->at(1).info.bytes, 0U);
}

TEST(NpzLayout, ANameThatLeadsOutOfTheFolderOfItsReaderIsRefused) {
  for (const char* const name : {"../../x", "/etc/x", "a/../../x"}) {
    const auto layout = NpzLayout::plan(std::vector{named_tensor(name, "F16", {1})});
    ASSERT_FALSE(layout.ok()) << name;
    EXPECT_THAT(layout.error().message, HasSubstr("write outside of its folder"));
  }
}

TEST(NpzLayout, ATypeThatNumpyLacksIsRefused) {
  const auto layout = NpzLayout::plan(std::vector{named_tensor("w", "BF16", {1})});
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(layout.error().message, HasSubstr(".safetensors"));
}

TEST(NpzLayout, TensorsWhoseBytesWrapAreRefusedWithTheName) {
  const std::vector<TensorInfo> tensors(5, named_tensor("big", "U8", {std::uint64_t{1} << 60}));
  const auto layout = NpzLayout::plan(tensors);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.code(), Code::invalid_argument);
  EXPECT_THAT(layout.error().message, HasSubstr("tensor \"big\" of 1152921504606846976 bytes is too large"));
}

TEST(NpzLayout, ANameWithAControlCharacterIsNotWritten) {
  const auto layout = NpzLayout::plan(std::vector{named_tensor("a\x7f", "U8", {1})});
  EXPECT_THAT(layout.error().message, HasSubstr(R"(the name of tensor "a\x7f" has a control character)"));
}

}  // namespace
}  // namespace headrace::formats
