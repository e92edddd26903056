// SPDX-License-Identifier: Apache-2.0
#include "wire/agent_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::wire {
namespace {

using ::testing::HasSubstr;

void expect_round_trip(const AgentMessage& message) {
  const auto bytes = encode(message);
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  EXPECT_LE(bytes->size(), agent_message_bytes);
  const auto back = decode_agent_message(*bytes);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, message);
}

TEST(AgentMessage, EachKindIsDecodedAsItWasEncoded) {
  expect_round_trip(Revoke{7, 12, {{1, 3}, {9, 1}, {4294967295U, 1}}});
  expect_round_trip(Revoke{~std::uint64_t{0}, ~std::uint64_t{0}, {}});
  expect_round_trip(Revoked{1});
  expect_round_trip(Goodbye{});
  expect_round_trip(Ask{~std::uint64_t{0}});
  expect_round_trip(Present{9});
  expect_round_trip(Credit{64, ~std::uint64_t{0}});
}

TEST(AgentMessage, AFullRevokeFitsAndOneMoreRangeIsRefused) {
  Revoke revoke{~std::uint64_t{0}, ~std::uint64_t{0}, std::vector<IdRange>(revoke_ranges, IdRange{1, 1})};
  expect_round_trip(revoke);
  revoke.ranges.push_back({1, 1});
  EXPECT_EQ(encode(AgentMessage(revoke)).code(), Code::invalid_argument);
}

TEST(AgentMessage, AnUnknownKindIsDecodedAsUnknownAndNotEncoded) {
  const auto message = decode_agent_message(std::string_view("\x93\x2a\xa1x\x91\xc0", 6));
  ASSERT_TRUE(message.ok()) << message.error().message;
  EXPECT_EQ(*message, AgentMessage(UnknownMessage{42}));
  EXPECT_EQ(encode(*message).code(), Code::invalid_argument);
}

TEST(AgentMessage, TruncationsAndWrongShapesAreRefusedWithAnOffset) {
  const std::string bytes = *encode(AgentMessage(Revoke{70000, 80000, {{1, 3}, {9, 1}}}));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_agent_message(std::string_view(bytes).substr(0, size)).code(), Code::corrupt) << size;
  }
  const std::vector<std::pair<std::string, const char*>> wrong = {
      {std::string("\x90"), "empty"},
      {std::string("\xc0"), "should be an array"},
      {std::string("\x91\x01"), "1 values for kind 1"},
      {std::string("\x92\x03\x01"), "2 values for kind 3"},
      {std::string("\x92\x02\x01\x01"), "follow the last value"},
      {std::string("\x94\x01\x01\x02\xc4\x07"
                   "1234567"),
       "a multiple of 8"},
      {std::string("\x94\x01\x01\x02\xc4\x08\0\0\0\0\1\0\0\0", 14), "beyond the last id"},
      {std::string("\x94\x01\x01\x02\xc4\x08\1\0\0\0\0\0\0\0", 14), "an empty range"},
      {std::string("\x94\x01\x01\x02\xc4\x08\xff\xff\xff\xff\2\0\0\0", 14), "beyond the last id"},
      {std::string(agent_message_bytes + 1, '\0'), "at most 65536"},
  };
  for (const auto& [message, sentence] : wrong) {
    const auto decoded = decode_agent_message(message);
    ASSERT_FALSE(decoded.ok()) << sentence;
    EXPECT_EQ(decoded.code(), Code::corrupt);
    EXPECT_THAT(decoded.error().message, ::testing::AllOf(HasSubstr(sentence), HasSubstr("at offset")));
  }
}

TEST(UserMessage, AUserMessageCarriesItsRequestAndPostBeforeThePayload) {
  const std::string payload("layer\0 7", 8);
  const UserMessage message{0x1122334455667788, 3, payload};
  const std::string bytes = *encode(message);
  EXPECT_EQ(bytes.size(), 16 + payload.size());
  EXPECT_EQ(*decode_user_message(bytes), message);
  EXPECT_EQ(*decode_user_message(std::string(16, '\0')), UserMessage{});
  EXPECT_EQ(decode_user_message(std::string(15, '\0')).code(), Code::corrupt);
}

TEST(UserMessage, AUserMessageHoldsExactlyTheLimitOfPayloadBytes) {
  const std::string payload(user_payload_bytes, 'p');
  const std::string bytes = *encode(UserMessage{1, 1, payload});
  EXPECT_TRUE(decode_user_message(bytes).ok());
  EXPECT_EQ(decode_user_message(bytes + 'p').code(), Code::corrupt);
  EXPECT_EQ(encode(UserMessage{1, 1, payload + 'p'}).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::wire
