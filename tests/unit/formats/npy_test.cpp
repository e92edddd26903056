// SPDX-License-Identifier: Apache-2.0
#include "formats/npy.hpp"

#include "unit/formats/named_tensor.hpp"

#include <gmock/gmock.h>

namespace headrace::formats {
namespace {

using ::testing::HasSubstr;

std::string npy_of(const std::string& dictionary) {
  std::string text = dictionary + "\n";
  const auto length = static_cast<std::uint16_t>(text.size());
  return std::string("\x93NUMPY\x01\x00", 8) + std::string(reinterpret_cast<const char*>(&length), 2) + text;
}

Result<NpyHeader> read_header(const std::string& file) { return read_npy(std::as_bytes(std::span(file))); }

TEST(Npy, AWrittenHeaderIsReadBackAndEndsAligned) {
  for (const auto& info :
       {named_tensor("a", "F32", {2, 3}), named_tensor("b", "I8", {5}), named_tensor("c", "F64", {}),
        named_tensor("d", "U16", {0, 4}), named_tensor("e", "C128", {1, 1, 1})}) {
    const std::string header = write_npy(info);
    const auto back = read_header(header);
    ASSERT_TRUE(back.ok()) << info.name << ": " << back.error().message;
    EXPECT_EQ(back->header_bytes, header.size());
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_EQ(back->type, info.type);
    EXPECT_EQ(back->shape, info.shape);
    EXPECT_EQ(back->data_bytes, info.bytes);
  }
}

TEST(Npy, AnArrayThatCannotBeMovedIsRefusedWithAdvice) {
  EXPECT_THAT(
      read_header(npy_of("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }")).error().message,
      HasSubstr("ascontiguousarray"));
  EXPECT_THAT(
      read_header(npy_of("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }")).error().message,
      HasSubstr("big-endian"));
  EXPECT_THAT(read_header(npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }")).error().message,
              HasSubstr("Python objects"));
  EXPECT_THAT(read_header(npy_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"))
                  .error()
                  .message,
              HasSubstr("structures"));
  EXPECT_THAT(
      read_header(npy_of("{'descr': '<U9', 'fortran_order': False, 'shape': (2,), }")).error().message,
      HasSubstr("<U9"));
}

TEST(Npy, AnImpossibleShapeHasAnotherErrorThanADamagedHeader) {
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "1, ";
  const auto of_shape = [](const std::string& shape) {
    return read_header(npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }"));
  };
  EXPECT_TRUE(of_shape(ones.substr(3)).ok());
  EXPECT_EQ(of_shape(ones).code(), Code::not_supported);
  EXPECT_THAT(of_shape(ones).error().message, HasSubstr("more than 64 dimensions, which is the limit"));
  EXPECT_THAT(of_shape("100000000000000000000,").error().message, HasSubstr("a length of more than 64 bits"));
  EXPECT_THAT(of_shape("-2,").error().message, HasSubstr("not a tuple of lengths"));
}

TEST(Npy, AnArrayOfOneDimensionMayHaveFortranOrder) {
  EXPECT_TRUE(read_header(npy_of("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }")).ok());
}

TEST(Npy, DamagedHeadersAreRefused) {
  for (const std::string& file :
       {std::string(), std::string("\x93NUMPY"), std::string("PK plainly not"), npy_of("{"),
        npy_of("{'descr' '<f4'}"), npy_of("{'descr': '<f4', 'fortran_order': False}"),
        npy_of("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296)}"),
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}"),
        std::string("\x93NUMPY\x01\x00\xff\xff{", 11)}) {
    const auto header = read_header(file);
    ASSERT_FALSE(header.ok()) << file;
    EXPECT_EQ(header.code(), Code::corrupt) << file;
  }
}

}  // namespace
}  // namespace headrace::formats
