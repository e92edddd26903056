// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/control_messages.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace headrace::shm {
namespace {

Result<ControlMessage> decode_text(const std::string& packet, std::size_t descriptors) {
  return decode(std::as_bytes(std::span(packet)), descriptors);
}

TEST(ControlMessages, come_back_as_they_were_sent) {
  const auto hello = std::get<Hello>(decode_text(encode(Hello{1, 2, {3, 4}, "name"}), 4).value());
  EXPECT_EQ(hello.incarnation, 1U);
  EXPECT_EQ(hello.expected_incarnation, 2U);
  EXPECT_EQ(hello.nonce.address, 3U);
  EXPECT_EQ(hello.nonce.value, 4U);
  EXPECT_EQ(hello.name, "name");
  const auto welcome = std::get<Welcome>(decode_text(encode(Welcome{5, {6, 7}, "w"}), 1).value());
  EXPECT_EQ(welcome.incarnation, 5U);
  EXPECT_EQ(welcome.nonce.value, 7U);
  const auto refusal = std::get<Refusal>(decode_text(encode(Refusal{Code::not_supported, "no"}), 0).value());
  EXPECT_EQ(refusal.code, Code::not_supported);
  EXPECT_EQ(refusal.text, "no");
  const auto share = std::get<Share>(decode_text(encode(Share{{{1, 2, 3}, {4, 5, 6}}}), 2).value());
  ASSERT_EQ(share.regions.size(), 2U);
  EXPECT_EQ(share.regions[1].region_id, 4U);
  EXPECT_EQ(share.regions[1].length_bytes, 6U);
  EXPECT_EQ(std::get<Unshare>(decode_text(encode(Unshare{{8, 9}}), 0).value()).region_ids,
            (std::vector<std::uint32_t>{8, 9}));
  EXPECT_TRUE(std::holds_alternative<Settled>(decode_text(encode(Settled{}), 0).value()));
  EXPECT_TRUE(std::holds_alternative<Goodbye>(decode_text(encode(Goodbye{}), 0).value()));
}

TEST(ControlMessages, cut_lengthened_or_with_other_descriptors_are_corrupt) {
  const std::vector<std::pair<ControlMessage, std::size_t>> all = {{Hello{1, 2, {3, 4}, "name"}, 4},
                                                                   {Welcome{5, {6, 7}, "w"}, 1},
                                                                   {Refusal{Code::peer_lost, "no"}, 0},
                                                                   {Share{{{1, 2, 3}}}, 1},
                                                                   {Unshare{{8}}, 0},
                                                                   {Settled{}, 0}};
  for (const auto& [message, descriptors] : all) {
    const std::string packet = encode(message);
    for (std::size_t length = 0; length < packet.size(); ++length)
      EXPECT_FALSE(decode_text(packet.substr(0, length), descriptors).ok());
    EXPECT_EQ(decode_text(packet + "x", descriptors).code(), Code::corrupt);
    EXPECT_EQ(decode_text(packet, descriptors + 1).code(), Code::corrupt);
  }
}

TEST(ControlMessages, of_another_version_are_refused_with_both_numbers) {
  std::string packet = encode(Settled{});
  packet[4] = 9;
  const auto decoded = decode_text(packet, 0);
  EXPECT_EQ(decoded.code(), Code::not_supported);
  EXPECT_NE(decoded.error().message.find("version 9"), std::string::npos) << decoded.error().message;
  EXPECT_NE(decoded.error().message.find("we speak 1"), std::string::npos) << decoded.error().message;
}

TEST(ControlMessages, with_flipped_bits_are_decoded_or_refused_and_nothing_else) {
  std::mt19937 random(3);
  for (const ControlMessage& message :
       {ControlMessage(Hello{1, 2, {3, 4}, "name"}), ControlMessage(Share{{{1, 2, 3}}}),
        ControlMessage(Unshare{{8, 9}})}) {
    for (int round = 0; round < 5000; ++round) {
      std::string packet = encode(message);
      for (int flips = 0; flips < 3; ++flips)
        packet[random() % packet.size()] ^= static_cast<char>(1 << random() % 8);
      const auto decoded = decode_text(packet, random() % 5);
      if (!decoded) {
        EXPECT_FALSE(decoded.error().message.empty());
      }
    }
  }
}

TEST(ControlMessages, connection_information_cannot_name_a_socket_elsewhere) {
  const auto decode_name = [](const std::string& name) {
    const std::string bytes = encode(ConnectionInfo{"boot", name});
    return decode_connection_info(std::as_bytes(std::span(bytes))).code();
  };
  EXPECT_EQ(decode_name("shm-1.sock"), Code::ok);
  EXPECT_EQ(decode_name("../shm-1.sock"), Code::corrupt);
  EXPECT_EQ(decode_name("a/b"), Code::corrupt);
  EXPECT_EQ(decode_name(".."), Code::corrupt);
  EXPECT_EQ(decode_name(std::string("a\0b", 3)), Code::corrupt);
  EXPECT_EQ(decode_name(""), Code::corrupt);
}

}  // namespace
}  // namespace headrace::shm
