// SPDX-License-Identifier: Apache-2.0
#include "wire/msgpack_reader.hpp"

#include "wire/byte_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <msgpack/pack.hpp>

namespace headrace::wire {
namespace {

using ::testing::HasSubstr;

TEST(MsgpackReader, ValuesOfEveryWidthThatMsgpackWritesAreRead) {
  ByteWriter writer;
  msgpack::packer<ByteWriter> packer(writer);
  const std::vector<std::uint64_t> numbers = {0,     127,   128,        255,         256,
                                              65535, 65536, 0xffffffff, 0x100000000, ~std::uint64_t{0}};
  packer.pack_array(static_cast<std::uint32_t>(numbers.size()));
  for (const std::uint64_t number : numbers) packer.pack_uint64(number);
  for (const std::uint64_t number : numbers) packer.pack_fix_uint64(number);
  packer.pack_fix_int8(5).pack_fix_int16(500).pack_fix_int32(70000).pack_fix_int64(1);
  const std::vector<std::size_t> lengths = {0, 15, 16, 31, 32, 255, 256, 65535, 65536};
  for (const std::size_t length : lengths) {
    const std::string bytes(length, 'b');
    packer.pack_str(static_cast<std::uint32_t>(length))
        .pack_str_body(bytes.data(), static_cast<std::uint32_t>(length));
    packer.pack_bin(static_cast<std::uint32_t>(length))
        .pack_bin_body(bytes.data(), static_cast<std::uint32_t>(length));
    packer.pack_array(static_cast<std::uint32_t>(length));
    packer.pack_map(static_cast<std::uint32_t>(length));
  }
  packer.pack_nil().pack_true().pack_false();

  MsgpackReader reader(writer.view(), "the test");
  EXPECT_EQ(*reader.array("numbers"), numbers.size());
  for (int pass = 0; pass < 2; ++pass) {
    for (const std::uint64_t number : numbers) EXPECT_EQ(*reader.unsigned_integer("number"), number);
  }
  for (const std::uint64_t number : {5, 500, 70000, 1}) EXPECT_EQ(*reader.unsigned_integer("signed"), number);
  for (const std::size_t length : lengths) {
    EXPECT_EQ(*reader.text("text", 1 << 20), std::string(length, 'b'));
    EXPECT_EQ(*reader.binary("binary", 1 << 20), std::string(length, 'b'));
    EXPECT_EQ(*reader.array("array"), length);
    EXPECT_EQ(*reader.map("map"), length);
  }
  EXPECT_TRUE(reader.take_nil());
  EXPECT_FALSE(reader.take_nil());
  EXPECT_TRUE(*reader.boolean("true"));
  EXPECT_FALSE(*reader.boolean("false"));
  EXPECT_TRUE(reader.end().ok());
}

TEST(MsgpackReader, SkipPassesOverOneValueOfAnyType) {
  ByteWriter writer;
  msgpack::packer<ByteWriter> packer(writer);
  packer.pack_array(12)
      .pack_nil()
      .pack_true()
      .pack_int8(-3)
      .pack_fix_int64(-70000)
      .pack_float(1.5F)
      .pack_double(2.5);
  packer.pack_str(3).pack_str_body("abc", 3).pack_bin(3).pack_bin_body("abc", 3);
  packer.pack_ext(1, 7).pack_ext_body("x", 1).pack_ext(16, 7).pack_ext_body("0123456789abcdef", 16);
  packer.pack_ext(300, 7).pack_ext_body(std::string(300, 'x').data(), 300);
  packer.pack_map(1).pack_uint8(1).pack_array(1).pack_nil();
  packer.pack_uint8(42);

  MsgpackReader reader(writer.view(), "the test");
  ASSERT_TRUE(reader.skip("all of it").ok());
  EXPECT_EQ(*reader.unsigned_integer("what follows"), 42U);
  for (std::size_t size = 0; size + 1 < writer.view().size(); ++size) {
    MsgpackReader cut(writer.view().substr(0, size), "the test");
    EXPECT_EQ(cut.skip("all of it").code(), Code::corrupt) << size;
  }
}

TEST(MsgpackReader, AnErrorNamesTheExpectedTypeAndTheOffset) {
  MsgpackReader reader("\x01\xc0", "the test", 100);
  ASSERT_TRUE(reader.unsigned_integer("one").ok());
  EXPECT_THAT(reader.text("the name", 9).error().message,
              ::testing::AllOf(HasSubstr("the test is corrupt at offset 101"),
                               HasSubstr("the name should be a text")));
}

TEST(MsgpackReader, TheGivenLimitsAreKept) {
  const auto reader = [](std::string_view bytes) { return MsgpackReader(bytes, "the test"); };
  EXPECT_TRUE(reader("\x05").unsigned_integer("n", 5).ok());
  EXPECT_EQ(reader("\x06").unsigned_integer("n", 5).code(), Code::corrupt);
  EXPECT_TRUE(reader("\xa3"
                     "abc")
                  .text("t", 3, 3)
                  .ok());
  EXPECT_EQ(reader("\xa3"
                   "abc")
                .text("t", 2)
                .code(),
            Code::corrupt);
  EXPECT_EQ(reader("\xa3"
                   "abc")
                .text("t", 9, 4)
                .code(),
            Code::corrupt);
  EXPECT_EQ(reader("\xa3"
                   "ab")
                .text("t", 9)
                .code(),
            Code::corrupt);
  EXPECT_EQ(reader("\xd0\xff").unsigned_integer("n").code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::wire
