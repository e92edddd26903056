// SPDX-License-Identifier: Apache-2.0
#include "host_link/control_messages.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace headrace::host_link {
namespace {

constexpr Protocol test_protocol{.backend = "test",
                                 .control_magic = 0x12345678,
                                 .info_magic = 0x9abcdef0,
                                 .version = 1,
                                 .greeting_bytes = 4};

Result<ControlMessage> decode_text(const std::string& packet, std::size_t descriptors) {
  return decode(test_protocol, std::as_bytes(std::span(packet)), descriptors);
}

TEST(ControlMessages, each_message_is_decoded_as_it_was_encoded) {
  const auto hello =
      std::get<Hello>(decode_text(encode(test_protocol, Hello{1, 2, "abcd", "name"}), 4).value());
  EXPECT_EQ(hello.incarnation, 1U);
  EXPECT_EQ(hello.expected_incarnation, 2U);
  EXPECT_EQ(hello.greeting, "abcd");
  EXPECT_EQ(hello.name, "name");
  const auto welcome =
      std::get<Welcome>(decode_text(encode(test_protocol, Welcome{5, "efgh", "w"}), 1).value());
  EXPECT_EQ(welcome.incarnation, 5U);
  EXPECT_EQ(welcome.greeting, "efgh");
  const auto refusal =
      std::get<Refusal>(decode_text(encode(test_protocol, Refusal{Code::not_supported, "no"}), 0).value());
  EXPECT_EQ(refusal.code, Code::not_supported);
  EXPECT_EQ(refusal.text, "no");
  EXPECT_TRUE(std::holds_alternative<Settled>(decode_text(encode(test_protocol, Settled{}), 0).value()));
  EXPECT_TRUE(std::holds_alternative<Goodbye>(decode_text(encode(test_protocol, Goodbye{}), 0).value()));
  const auto other = std::get<Other>(decode_text(encode(test_protocol, Other{77, "its own"}), 3).value());
  EXPECT_EQ(other.type, 77U);
  EXPECT_EQ(other.body, "its own");
}

TEST(ControlMessages, a_message_of_another_length_or_number_of_descriptors_is_corrupt) {
  const std::vector<std::pair<ControlMessage, std::size_t>> all = {{Hello{1, 2, "abcd", "name"}, 4},
                                                                   {Welcome{5, "efgh", "w"}, 1},
                                                                   {Refusal{Code::peer_lost, "no"}, 0},
                                                                   {Settled{}, 0}};
  for (const auto& [message, descriptors] : all) {
    const std::string packet = encode(test_protocol, message);
    for (std::size_t length = 0; length < packet.size(); ++length)
      EXPECT_FALSE(decode_text(packet.substr(0, length), descriptors).ok());
    EXPECT_EQ(decode_text(packet + "x", descriptors).code(), Code::corrupt);
    EXPECT_EQ(decode_text(packet, descriptors + 1).code(), Code::corrupt);
  }
}

TEST(ControlMessages, a_message_of_another_version_is_refused_with_both_versions) {
  std::string packet = encode(test_protocol, Settled{});
  packet[4] = 9;
  const auto decoded = decode_text(packet, 0);
  EXPECT_EQ(decoded.code(), Code::not_supported);
  EXPECT_NE(decoded.error().message.find("version 9 of test"), std::string::npos) << decoded.error().message;
  EXPECT_NE(decoded.error().message.find("we speak 1"), std::string::npos) << decoded.error().message;
}

TEST(ControlMessages, a_message_with_flipped_bits_is_decoded_or_refused) {
  std::mt19937 random(3);
  for (const ControlMessage& message :
       {ControlMessage(Hello{1, 2, "abcd", "name"}), ControlMessage(Refusal{Code::corrupt, "text"})}) {
    for (int round = 0; round < 5000; ++round) {
      std::string packet = encode(test_protocol, message);
      for (int flips = 0; flips < 3; ++flips)
        packet[random() % packet.size()] ^= static_cast<char>(1 << random() % 8);
      const auto decoded = decode_text(packet, random() % 5);
      if (!decoded) {
        EXPECT_FALSE(decoded.error().message.empty());
      }
    }
  }
}

TEST(ControlMessages, connection_information_cannot_name_a_socket_in_another_folder) {
  const auto decode_name = [](const std::string& name) {
    const std::string bytes = encode(test_protocol, ConnectionInfo{"boot", name});
    return decode_connection_info(test_protocol, std::as_bytes(std::span(bytes))).code();
  };
  EXPECT_EQ(decode_name("test-1.sock"), Code::ok);
  EXPECT_EQ(decode_name("../test-1.sock"), Code::corrupt);
  EXPECT_EQ(decode_name("a/b"), Code::corrupt);
  EXPECT_EQ(decode_name(".."), Code::corrupt);
  EXPECT_EQ(decode_name(std::string("a\0b", 3)), Code::corrupt);
  EXPECT_EQ(decode_name(""), Code::corrupt);
}

}  // namespace
}  // namespace headrace::host_link
