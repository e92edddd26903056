// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/frame.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::tcp {
namespace {

FrameHeader header(FrameType type, std::uint32_t ranges, std::uint64_t payload, std::uint32_t code = 0) {
  FrameHeader made;
  made.type = type;
  made.ranges = ranges;
  made.payload = payload;
  made.code = code;
  return made;
}

TEST(Frame, a_header_lies_as_the_wire_document_says) {
  FrameHeader made = header(FrameType::write, 0x04030201, 0x1817161514131211, 0x24232221);
  made.flags = flag_uniform;
  made.channel = 0x0605;
  made.request = 0x2807060504030201;
  made.chunk = 0x34333231;
  made.chunks = 0x44434241;
  made.os_error = 0x54535251;
  std::vector<unsigned char> bytes(frame_header_bytes);
  std::memcpy(bytes.data(), &made, bytes.size());
  const std::vector<unsigned char> expected{1,    4,    0x05, 0x06, 0x01, 0x02, 0x03, 0x04, 0x01, 0x02,
                                            0x03, 0x04, 0x05, 0x06, 0x07, 0x28, 0x31, 0x32, 0x33, 0x34,
                                            0x41, 0x42, 0x43, 0x44, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
                                            0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x51, 0x52, 0x53, 0x54};
  EXPECT_EQ(bytes, expected);
}

TEST(Frame, every_type_keeps_to_its_ranges_and_payload) {
  EXPECT_TRUE(check(header(FrameType::write, 1, 1)).ok());
  EXPECT_TRUE(check(header(FrameType::write, max_ranges, UINT64_MAX)).ok());
  EXPECT_FALSE(check(header(FrameType::write, max_ranges + 1, 1)).ok());
  EXPECT_FALSE(check(header(FrameType::write, 0, 1)).ok());
  EXPECT_FALSE(check(header(FrameType::write, 1, 0)).ok());
  EXPECT_TRUE(check(header(FrameType::write_ack, 0, 8)).ok());
  EXPECT_FALSE(check(header(FrameType::write_ack, 0, 9)).ok());
  EXPECT_FALSE(check(header(FrameType::write_ack, 1, 8)).ok());
  EXPECT_TRUE(check(header(FrameType::read, 1, 0)).ok());
  EXPECT_FALSE(check(header(FrameType::read, 1, 1)).ok());
  EXPECT_FALSE(check(header(FrameType::read, 0, 0)).ok());
  EXPECT_TRUE(check(header(FrameType::read_data, 0, 1)).ok());
  EXPECT_FALSE(check(header(FrameType::read_data, 0, 0)).ok());
  EXPECT_TRUE(check(header(FrameType::read_data, 0, 8, 3)).ok());
  EXPECT_FALSE(check(header(FrameType::read_data, 0, 4096, 3)).ok());
  EXPECT_TRUE(check(header(FrameType::message, 0, max_message_bytes)).ok());
  EXPECT_FALSE(check(header(FrameType::message, 0, max_message_bytes + 1)).ok());
  EXPECT_FALSE(check(header(FrameType::message, 0, 1, 6)).ok());
  for (const FrameType type :
       {FrameType::ping, FrameType::pong, FrameType::goodbye, FrameType::message_ack}) {
    EXPECT_TRUE(check(header(type, 0, 0)).ok());
    EXPECT_FALSE(check(header(type, 0, 1)).ok());
    EXPECT_FALSE(check(header(type, 1, 0)).ok());
  }
}

TEST(Frame, an_unknown_type_passes_only_if_it_is_optional_and_small) {
  FrameHeader unknown = header(static_cast<FrameType>(200), 3, 1000);
  EXPECT_EQ(check(unknown).code(), Code::corrupt);
  unknown.flags = flag_optional;
  EXPECT_TRUE(check(unknown).ok());
  unknown.payload = max_unknown_payload + 1;
  EXPECT_EQ(check(unknown).code(), Code::corrupt);
}

TEST(Frame, ranges_are_read_back_with_and_without_common_length) {
  std::vector<std::byte> bytes(8 + 2 * uniform_range_bytes);
  const std::uint64_t length = 4096;
  std::memcpy(bytes.data(), &length, 8);
  const WireRange first{7, 0, 100, 0}, second{9, 0, 1ULL << 40, 0};
  std::memcpy(bytes.data() + 8, &first, uniform_range_bytes);
  std::memcpy(bytes.data() + 24, &second, uniform_range_bytes);
  FrameHeader uniform = header(FrameType::read, 2, 0);
  uniform.flags = flag_uniform;
  EXPECT_EQ(ranges_bytes(uniform), bytes.size());
  const RangeList list(uniform, bytes.data());
  EXPECT_EQ(list[1].region, 9U);
  EXPECT_EQ(list[1].offset, 1ULL << 40);
  EXPECT_EQ(list[0].length, 4096U);
  EXPECT_EQ(list.total_bytes().value(), 8192U);

  const std::vector<WireRange> own{{1, 0, 2, 3}, {4, 0, 5, 6}};
  const RangeList others(header(FrameType::read, 2, 0), reinterpret_cast<const std::byte*>(own.data()));
  EXPECT_EQ(others[1].region, 4U);
  EXPECT_EQ(others[1].length, 6U);
  EXPECT_EQ(others.total_bytes().value(), 9U);
}

TEST(Frame, lengths_that_do_not_fit_64_bits_together_are_refused) {
  const std::vector<WireRange> own{{1, 0, 2, UINT64_MAX}, {4, 0, 5, 1}};
  EXPECT_EQ(RangeList(header(FrameType::read, 2, 0), reinterpret_cast<const std::byte*>(own.data()))
                .total_bytes()
                .code(),
            Code::corrupt);
  std::vector<std::byte> bytes(8 + 2 * uniform_range_bytes);
  const std::uint64_t length = (1ULL << 63) + 1;
  std::memcpy(bytes.data(), &length, 8);
  FrameHeader uniform = header(FrameType::read, 2, 0);
  uniform.flags = flag_uniform;
  EXPECT_EQ(RangeList(uniform, bytes.data()).total_bytes().code(), Code::corrupt);
}

}  // namespace
}  // namespace headrace::tcp
