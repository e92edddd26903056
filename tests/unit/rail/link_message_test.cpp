// SPDX-License-Identifier: Apache-2.0
#include "rail/link_message.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace headrace::rail {
namespace {

std::vector<LinkMessage> samples() {
  RailDown down{3, 2, 77, {}};
  down.counted.below = 5;
  down.counted.bits = {1, 2, 3};
  return {Announcement{UINT64_MAX, 64, 1, 2, 3},
          CountedBelow{9},
          down,
          Offer{1, 0, "", {}},
          Offer{2, max_inline_bytes, std::string(max_inline_bytes, 'm'), {}},
          Offer{3, UINT64_MAX, "", {"a key", "b"}},
          Withdraw{4},
          Done{5, Code::invalid_argument, 77},
          Beat{}};
}

TEST(RailLinkMessage, is_read_as_it_was_written) {
  for (const auto& message : samples()) {
    const auto bytes = encode(message);
    EXPECT_LE(bytes.size(), max_link_message_bytes);
    const auto read = read_link_message(bytes);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, message);
  }
}

TEST(RailLinkMessage, is_refused_if_it_is_cut_or_longer) {
  for (const auto& message : samples()) {
    const auto bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); length += 1 + length / 50)
      EXPECT_EQ(read_link_message(bytes.substr(0, length)).code(), Code::corrupt) << length;
    EXPECT_EQ(read_link_message(bytes + "x").code(), Code::corrupt);
  }
  EXPECT_EQ(read_link_message(encode(Announcement{1, 65, 0, 0, 1})).code(), Code::corrupt);
  EXPECT_EQ(read_link_message(encode(Announcement{0, 1, 0, 0, 1})).code(), Code::corrupt);
  for (const LinkMessage& bad : std::vector<LinkMessage>{
           Offer{0, 1, "a", {}}, Offer{1, 2, "a", {}}, Offer{1, 0, "", {"a key"}}, Withdraw{0}, Done{0},
           Offer{1, max_inline_bytes + 1, std::string(max_inline_bytes + 1, 'm'), {}},
           Offer{1, 1, "", std::vector<std::string>(max_rails + 1, "a")}, Done{1, Code::exhausted, 0}})
    EXPECT_EQ(read_link_message(encode(bad)).code(), Code::corrupt);
  EXPECT_EQ(read_link_message("\x09").code(), Code::corrupt);
}

TEST(RailHello, is_read_as_it_was_written_and_refused_if_it_is_damaged) {
  const RailHello hello{1, 2, 3, 4, 2, 5, 1};
  const auto bytes = encode(hello);
  EXPECT_EQ(*read_rail_hello(bytes), hello);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(read_rail_hello(bytes.substr(0, length))) << length;
  EXPECT_EQ(read_rail_hello(encode(RailHello{1, 2, 4, 4, 2, 1})).code(), Code::corrupt) << "rail 4 of 4";
  EXPECT_EQ(read_rail_hello(encode(RailHello{1, 2, 3, 4, 2, 1, 2})).code(), Code::corrupt) << "NIC 2 of 2";
  EXPECT_EQ(read_rail_hello(encode(RailHello{1, 2, 3, 4, max_rails + 1, 1})).code(), Code::corrupt);
  auto newer = bytes;
  newer[4] = 9;
  EXPECT_EQ(read_rail_hello(newer).code(), Code::not_supported);
}

}  // namespace
}  // namespace headrace::rail
